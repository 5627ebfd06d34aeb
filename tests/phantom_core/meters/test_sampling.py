import threading
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from phantom_core.meters.base import EnergyReading, Meter, MeterBase, PowerMethod, PowerReading
from phantom_core.meters.choose import MeterRequest, open_distinct_meters
from phantom_core.meters.integration import integrate_power
from phantom_core.meters.nvml_library import NvmlSession
from phantom_core.meters.nvml_lookup import find_board
from phantom_core.meters.nvml_meter import NvmlMeter
from phantom_core.meters.sampling import PowerSampler, Sample
from phantom_core.meters.windows import methods_disagree, window_energy
from phantom_core.protocol import BoardState, BoardStates, DeviceInfo, PowerSamples, SamplerEnded
from tests.nvml_stub.harness import Clock, LoadedStub, StubBoard, StubScript


class FakeMeter(MeterBase):
    """A board whose readings come from a function of time and take a while."""

    def __init__(
        self,
        clock: Clock,
        read: Callable[[float], tuple[float | None, PowerMethod | None]] = lambda t: (100.0, "instant"),
        cost_s: float = 0.0,
        uuid: str = "GPU-1",
    ) -> None:
        self._clock, self._read, self._cost_s = clock, read, cost_s
        self.states = 0
        self.device = DeviceInfo(
            host="host", uuid=uuid, kind="cuda", name="H100", method="nvml.counter", scope="gpu"
        )

    def read_energy(self) -> EnergyReading:
        raise NotImplementedError

    def read_power(self) -> PowerReading:
        power_mw, method = self._read(self._clock.now_s)
        reading = PowerReading(self._clock.instant(), power_mw, method, reason=None if power_mw else "gone")
        self._clock.sleep(self._cost_s)
        return reading

    def read_state(self) -> BoardState:
        self.states += 1
        now = self._clock.instant()
        return BoardState(at=now.at, monotonic_s=now.monotonic_s, sm_clock_mhz=1980)


class Ending:
    """Ends the loop at a moment of the test's clock; sleeps a little long, as real waits do."""

    def __init__(self, clock: Clock, at_s: float, late_s: float = 0.0) -> None:
        self._clock, self._at_s, self._late_s = clock, at_s, late_s

    def wait(self, timeout: float | None = None, /) -> bool:
        self._clock.sleep((timeout or 0.0) + self._late_s)
        return self._clock.now_s >= self._at_s


def sampled(
    meters: Sequence[Meter], clock: Clock, seconds: float, rate_hz: float = 10.0, late_s: float = 0.0
) -> tuple[list[Sample], SamplerEnded, PowerSampler]:
    taken: list[Sample] = []
    sampler = PowerSampler(meters, rate_hz, taken.append, host="host", monotonic=clock.monotonic)
    ended = sampler.run(Ending(clock, seconds, late_s))
    return taken, ended, sampler


def power(taken: Sequence[Sample]) -> list[PowerSamples]:
    return [sample for sample in taken if isinstance(sample, PowerSamples)]


def test_instants_keep_to_the_schedule_however_late_each_wait_returns() -> None:
    clock = Clock()
    taken, ended, _ = sampled([FakeMeter(clock)], clock, 10.0, late_s=0.003)
    times = [t for batch in power(taken) for t in batch.monotonic_s]
    assert len(times) == ended.samples == 100
    assert all(t == pytest.approx(n / 10, abs=0.0031) for n, t in enumerate(times))
    assert ended.largest_gap_s == pytest.approx(0.103, abs=0.001)
    assert ended.reason is None


def test_missed_instants_are_skipped_and_counted_not_made_up_for() -> None:
    clock = Clock()

    def slow_once(t: float) -> tuple[float, PowerMethod]:
        if 1.0 <= t < 1.05:
            clock.sleep(0.45)
        return 100.0, "instant"

    taken, ended, sampler = sampled([FakeMeter(clock, slow_once)], clock, 3.0)
    times = [t for batch in power(taken) for t in batch.monotonic_s]
    assert sampler.health.missed_ticks == 4
    assert min(b - a for a, b in pairwise(times)) > 0.04
    assert ended.largest_gap_s == pytest.approx(0.55, abs=0.01)


def test_samples_are_handed_over_in_batches_in_order_with_nothing_lost() -> None:
    clock = Clock()
    taken, ended, _ = sampled([FakeMeter(clock)], clock, 7.05)
    batches = power(taken)
    assert [len(batch.at) for batch in batches] == [21, 20, 20, 10]
    assert sum(len(batch.power_mw) for batch in batches) == ended.samples
    assert isinstance(taken[-1], SamplerEnded)
    assert taken[-1] == ended


def test_board_states_come_once_a_second_beside_the_power() -> None:
    clock = Clock()
    meter = FakeMeter(clock)
    taken, _, _ = sampled([meter], clock, 5.05)
    states = [state for batch in taken if isinstance(batch, BoardStates) for state in batch.states]
    assert [state.monotonic_s for state in states] == pytest.approx([0, 1, 2, 3, 4, 5])


def test_boards_take_turns_with_their_states_so_that_no_instant_is_missed() -> None:
    clock = Clock()

    class Slow(FakeMeter):
        def read_state(self) -> BoardState:
            state = super().read_state()
            clock.sleep(0.06)
            return state

    meters = [Slow(clock, uuid=f"GPU-{n}") for n in range(8)]
    _, _, sampler = sampled(meters, clock, 5.05)
    assert sampler.health.missed_ticks == 0
    assert [meter.states for meter in meters] == [6, 5, 5, 5, 5, 5, 5, 5]


def test_a_failing_read_is_a_none_among_the_samples_and_a_gap() -> None:
    clock = Clock()
    meter = FakeMeter(clock, lambda t: (None, None) if 2.0 <= t < 3.0 else (100.0, "instant"))
    taken, ended, sampler = sampled([meter], clock, 5.0)
    values = [value for batch in power(taken) for value in batch.power_mw]
    assert len(values) == 50
    assert values.count(None) == sampler.health.failures == 10
    assert ended.samples == 40
    assert ended.largest_gap_s == pytest.approx(1.1, abs=0.01)


def test_a_device_that_is_lost_for_good_is_a_gap_until_the_end() -> None:
    clock = Clock()
    meter = FakeMeter(clock, lambda t: (100.0, "instant") if t < 2.0 else (None, None))
    _, ended, _ = sampled([meter], clock, 5.0)
    assert ended.largest_gap_s == pytest.approx(3.0, abs=0.11)


def test_a_change_of_method_starts_a_batch_of_its_own() -> None:
    clock = Clock()
    meter = FakeMeter(clock, lambda t: (100.0, "instant" if t < 0.55 else "average"))
    taken, _, _ = sampled([meter], clock, 1.05)
    assert [(batch.method, len(batch.at)) for batch in power(taken)] == [("instant", 6), ("average", 5)]


def test_a_device_that_never_answers_sends_no_samples_and_is_counted_as_failing() -> None:
    clock = Clock()
    taken, ended, sampler = sampled([FakeMeter(clock, lambda t: (None, None))], clock, 1.05)
    assert power(taken) == []
    assert (ended.samples, sampler.health.failures) == (0, 11)


def test_the_heartbeat_is_the_last_time_all_devices_were_read() -> None:
    clock = Clock()
    _, _, sampler = sampled([FakeMeter(clock), FakeMeter(clock, uuid="GPU-2")], clock, 2.0)
    assert sampler.health.last is not None
    assert sampler.health.last.monotonic_s == pytest.approx(1.9, abs=0.01)
    assert sampler.health.samples == 40


def test_a_sink_that_fails_ends_the_sampler_alone_with_the_reason() -> None:
    clock = Clock()

    def full(sample: Sample) -> None:
        raise OSError(28, "No space left on device")

    sampler = PowerSampler([FakeMeter(clock)], 10, full, host="host", monotonic=clock.monotonic)
    ended = sampler.run(Ending(clock, 60))
    assert "No space left on device" in (ended.reason or "")
    assert ended.samples == 21


def test_a_meter_that_breaks_ends_the_sampler_with_the_reason_and_what_it_had() -> None:
    clock = Clock()

    def broken(t: float) -> tuple[float, PowerMethod]:
        if t > 1:
            raise RuntimeError("the meter broke")
        return 100.0, "instant"

    taken, ended, _ = sampled([FakeMeter(clock, broken)], clock, 60)
    assert ended.reason == "RuntimeError: the meter broke"
    assert taken[-1] == ended
    assert sum(len(batch.at) for batch in power(taken)) == ended.samples == 11


@pytest.mark.parametrize("rate_hz", [0.0, -1.0, 50.1, float("nan")])
def test_a_rate_beyond_the_floor_of_20_ms_is_refused(rate_hz: float) -> None:
    with pytest.raises(ValueError, match="at most 50"):
        PowerSampler([], rate_hz, print, host="host")


def test_a_thread_stops_it_by_an_event() -> None:
    taken: list[Sample] = []
    stop = threading.Event()
    requests = [MeterRequest("cpu", rank=0, cpu_method="estimate")]
    (meter,) = open_distinct_meters(requests)
    first = threading.Event()

    def sink(sample: Sample) -> None:
        taken.append(sample)
        first.set()

    sampler = PowerSampler([meter], 50, sink, host="host", batch_s=0.05)
    thread = threading.Thread(target=sampler.run, args=(stop,))
    thread.start()
    assert first.wait(60)
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(taken[-1], SamplerEnded)
    assert power(taken)[0].method == "estimate"


def test_its_samples_integrate_to_what_the_counter_says(load: Callable[[StubScript], LoadedStub]) -> None:
    board = StubBoard(power=((0, 100), (5, 100), (6, 600), (12, 600), (13, 100)))
    stub = load(StubScript(boards=(board,)))
    session = NvmlSession(stub.clock.monotonic)
    session.open()
    found = find_board(session, board.uuid)
    taken: list[Sample] = []
    with NvmlMeter(session, found, "host", monotonic=stub.clock.monotonic, sleep=stub.clock.sleep) as meter:
        start = meter.read_energy()
        sampler = PowerSampler([meter], 10, taken.append, host="host", monotonic=stub.clock.monotonic)
        sampler.run(Ending(stub.clock, 20.0))
        end = meter.read_energy()
    counter = window_energy(start, end)
    samples = [pair for batch in power(taken) for pair in zip(batch.monotonic_s, batch.power_mw, strict=True)]
    integral = integrate_power(
        samples, start.instant.monotonic_s, end.instant.monotonic_s, rate_hz=10, sensor_period_s=0.1
    )
    assert counter.energy_mj is not None
    assert counter.uncertainty_mj is not None
    assert integral.energy_mj is not None
    assert integral.uncertainty_mj is not None
    bound_mj = counter.uncertainty_mj + integral.uncertainty_mj
    assert abs(counter.energy_mj - integral.energy_mj) <= bound_mj
    assert not methods_disagree(counter.energy_mj, integral.energy_mj)
