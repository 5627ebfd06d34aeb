"""One board through the unmodified binding: what it reads, and each way in which it can fail."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from phantom_core.flags import Flag, blocking
from phantom_core.meters.company import OwnProcesses, state_flags
from phantom_core.meters.nvml_board import Metric, NvmlBoard
from phantom_core.meters.nvml_library import Answer, NvmlSession
from phantom_core.meters.nvml_lookup import find_board
from phantom_core.meters.nvml_meter import NvmlMeter
from phantom_core.meters.windows import window_energy
from phantom_core.spec import GpuScope
from tests.nvml_stub.harness import (
    ALWAYS,
    DEPRECATED,
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    TIMEOUT,
    UNKNOWN,
    Failure,
    LoadedStub,
    StubBoard,
    StubScript,
)

UUID = StubBoard().uuid
NO_COUNTER = Failure("nvmlDeviceGetTotalEnergyConsumption", NOT_SUPPORTED)
NO_INSTANT = Failure("field:186:0", NOT_SUPPORTED)
NO_AVERAGE = Failure("field:185:0", NOT_SUPPORTED)

Load = Callable[[StubScript], LoadedStub]


@contextmanager
def metered(stub: LoadedStub, uuid: str = UUID, scope: GpuScope = "gpu") -> Iterator[NvmlMeter]:
    session = NvmlSession(stub.clock.monotonic)
    session.open()
    found = find_board(session, uuid)
    with NvmlMeter(session, found, "host", scope, stub.clock.monotonic, stub.clock.sleep) as meter:
        yield meter


def one_board(**changes: object) -> StubScript:
    return StubScript(boards=(StubBoard(**changes),))  # type: ignore[arg-type]


def test_a_window_is_the_counters_difference_with_method_scope_and_bound(load: Load) -> None:
    stub = load(one_board(power=((0, 200), (10, 200), (10, 600), (20, 600))))
    with metered(stub) as meter:
        stub.clock.set(5.03)
        start = meter.read_energy()
        stub.clock.set(15.07)
        energy = window_energy(start, meter.read_energy())
    assert energy.energy_mj == pytest.approx(200 * 5_000 + 600 * 5_000, abs=1)
    assert (energy.method, energy.scope, energy.flags) == ("nvml.counter", "gpu", ())
    assert energy.uncertainty_mj == pytest.approx(0.1 * 700_000, rel=0.03)


def test_the_device_is_described_once_with_what_it_is_read_by(load: Load) -> None:
    with metered(load(one_board())) as meter:
        device = meter.device
    assert (device.uuid, device.kind, device.name, device.driver) == (
        UUID,
        "cuda",
        "NVIDIA H200",
        "570.86.15",
    )
    assert (device.method, device.scope, device.power_limit_mw) == ("nvml.counter", "gpu", 700_000)
    assert device.memory_bytes == 150_000_000_000


@pytest.mark.parametrize("period_s", [0.02, 0.1, 0.15])
def test_the_counters_update_period_is_measured_and_never_taken_too_short(
    load: Load, period_s: float
) -> None:
    with metered(load(one_board(period_s=period_s))) as meter:
        assert meter.update_period_s is not None
        assert period_s <= meter.update_period_s <= period_s + 0.005


def test_a_counter_that_hardly_moves_is_given_a_long_period_and_said_so(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    with metered(load(one_board(period_s=5.0))) as meter:
        assert meter.update_period_s == 1.0
    assert "not seen to move twice" in caplog.text


def test_a_window_in_which_the_counter_stood_still_is_unknown_and_not_zero(load: Load) -> None:
    stub = load(one_board())
    with metered(stub) as meter:
        stub.clock.set(5.01)
        start = meter.read_energy()
        stub.clock.set(5.09)
        energy = window_energy(start, meter.read_energy())
    assert energy.energy_mj is None
    assert "did not move" in (energy.reason or "")


def test_a_read_takes_one_call_of_the_driver(load: Load) -> None:
    stub = load(one_board())
    with metered(stub) as meter:
        before = stub.calls("nvmlDeviceGetTotalEnergyConsumption")
        meter.read_energy()
        assert stub.calls("nvmlDeviceGetTotalEnergyConsumption") == before + 1
        fields = stub.calls("nvmlDeviceGetFieldValues")
        meter.read_power()
        assert stub.calls("nvmlDeviceGetFieldValues") == fields + 1


def test_what_a_board_lacks_is_asked_once_and_logged_once(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    no_temperature = Failure("nvmlDeviceGetTemperature", NOT_SUPPORTED)
    stub = load(one_board(failures=(no_temperature,)))
    with metered(stub) as meter:
        asked = stub.calls("nvmlDeviceGetTemperature")
        states = [meter.read_state() for _ in range(5)]
        assert stub.calls("nvmlDeviceGetTemperature") == asked
    assert all(state.temperature_c is None for state in states)
    assert all("temperature: nvmlDeviceGetTemperature: Not Supported" in state.reasons for state in states)
    assert caplog.text.count("lacks:") == 1


@pytest.mark.parametrize(
    ("failures", "capability", "method"),
    [
        ((), (9, 0), "instant"),
        ((NO_INSTANT,), (9, 0), "average"),
        ((NO_INSTANT, NO_AVERAGE), (9, 0), "average"),
        ((NO_INSTANT, NO_AVERAGE), (8, 6), "average"),
        ((NO_INSTANT, NO_AVERAGE), (8, 0), "instant"),
        ((NO_INSTANT, NO_AVERAGE), (7, 0), "instant"),
    ],
)
def test_momentary_and_averaged_power_are_told_apart(
    load: Load, failures: tuple[Failure, ...], capability: tuple[int, int], method: str
) -> None:
    board = {"failures": failures, "capability": capability, "power": ((0, 100), (9.9, 100), (9.9, 500))}
    stub = load(one_board(**board))
    with metered(stub) as meter:
        stub.clock.set(10.05)
        reading = meter.read_power()
    assert reading.method == method
    assert reading.power_mw == pytest.approx(500_000 if method == "instant" else 140_000, rel=0.01)


def test_every_fields_own_return_code_is_checked(load: Load) -> None:
    stub = load(one_board(failures=(Failure("field:186:0", UNKNOWN, (5, 6)),)))
    with metered(stub) as meter:
        stub.clock.set(5.5)
        assert meter.read_power().power_mw is None
        assert "NVML_FI_DEV_POWER_INSTANT" in (meter.read_power().reason or "")
        stub.clock.set(6.5)
        assert meter.read_power().power_mw == 100_000


ASKED_BY = {
    Metric.ENERGY: "nvmlDeviceGetTotalEnergyConsumption",
    Metric.MODULE_ENERGY: "field:191:1",
    Metric.POWER_INSTANT: "field:186:0",
    Metric.POWER_AVERAGE: "field:185:0",
    Metric.POWER_USAGE: "nvmlDeviceGetPowerUsage",
    Metric.MODULE_POWER: "field:186:1",
    Metric.UTILIZATION: "nvmlDeviceGetUtilizationRates",
    Metric.SM_CLOCK: "nvmlDeviceGetClockInfo",
    Metric.MEMORY_CLOCK: "nvmlDeviceGetClockInfo",
    Metric.TEMPERATURE: "nvmlDeviceGetTemperature",
    Metric.POWER_LIMIT: "nvmlDeviceGetEnforcedPowerLimit",
    Metric.CLOCK_LIMIT: "nvmlDeviceGetApplicationsClock",
    Metric.MEMORY_CLOCK_LIMIT: "nvmlDeviceGetApplicationsClock",
    Metric.THROTTLE_REASONS: "nvmlDeviceGetCurrentClocksEventReasons",
    Metric.PROCESSES: "nvmlDeviceGetComputeRunningProcesses_v3",
}
"""The stub's name for what each metric asks."""
OLDER_NAMES = {
    Metric.CLOCK_LIMIT: ("nvmlDeviceGetClock", "nvmlDeviceGetMaxCustomerBoostClock"),
    Metric.MEMORY_CLOCK_LIMIT: ("nvmlDeviceGetClock", "nvmlDeviceGetMaxCustomerBoostClock"),
    Metric.THROTTLE_REASONS: ("nvmlDeviceGetCurrentClocksThrottleReasons",),
    Metric.PROCESSES: ("nvmlDeviceGetComputeRunningProcesses_v2",),
}
"""What is asked where a driver doesn't have that."""


@pytest.mark.parametrize(
    ("code", "words", "lasting", "lost"),
    [
        (NOT_SUPPORTED, "Not Supported", True, False),
        (NO_PERMISSION, "not permitted to this user", True, False),
        (FUNCTION_NOT_FOUND, "Function Not Found", True, False),
        (INVALID_ARGUMENT, "Invalid Argument", True, False),
        (DEPRECATED, "error 26", True, False),
        (NOT_FOUND, "Not Found", True, False),
        (TIMEOUT, "Timeout", False, False),
        (UNKNOWN, "Unknown Error", False, False),
        (GPU_IS_LOST, "fell off the bus", False, True),
    ],
)
@pytest.mark.parametrize("metric", list(Metric))
def test_whatever_code_any_metric_returns_it_is_none_with_the_reason_and_the_others_are_read(
    load: Load, metric: Metric, code: int, words: str, lasting: bool, lost: bool
) -> None:
    what = ASKED_BY[metric]
    failures = tuple(Failure(name, code) for name in (what, *OLDER_NAMES.get(metric, ())))
    load(one_board(failures=failures, module_extra_w=150.0))
    session = NvmlSession()
    session.open()
    try:
        board = NvmlBoard(session, UUID)
        answers = {each: board.read(each) for each in Metric}
        counted = board.counter(Metric.ENERGY)()
    finally:
        session.close()
    answer = answers.pop(metric)
    assert (answer.value, answer.lasting, answer.lost) == (None, lasting, lost)
    assert words in (answer.reason or "")
    assert all((other.value is None) == (ASKED_BY[each] == what) for each, other in answers.items()), (
        "only what asks the same question fails with it"
    )
    assert isinstance(counted, Answer) == (metric is Metric.ENERGY)


def test_without_a_counter_sampled_power_is_integrated_under_its_own_name(load: Load) -> None:
    stub = load(one_board(failures=(NO_COUNTER,), power=((0, 100), (10, 300))))
    with metered(stub) as meter:
        assert (meter.device.method, meter.device.scope) == ("nvml.power", "gpu")
        assert "no energy counter" in (meter.device.reason or "")
        start = meter.read_energy()
        from_s = stub.clock.now_s
        for _ in range(100):
            stub.clock.sleep(0.05)
            meter.read_energy()
        energy = window_energy(start, meter.read_energy())
        seconds = stub.clock.now_s - from_s
    assert energy.method == "nvml.power"
    assert energy.energy_mj is not None
    assert energy.uncertainty_mj is not None
    true_mj = 1_000 * seconds * (100 + 20 * (from_s + seconds / 2))
    assert energy.uncertainty_mj < 0.1 * true_mj
    assert abs(energy.energy_mj - true_mj) <= energy.uncertainty_mj


def test_integrated_averages_lag_by_a_second_and_their_bound_says_so(load: Load) -> None:
    no_instant = (NO_COUNTER, NO_INSTANT)
    stub = load(one_board(failures=no_instant, power=((0, 100), (5, 100), (5.5, 600), (20, 600))))
    with metered(stub) as meter:
        assert meter.read_power().method == "average"
        stub.clock.set(4.0)
        start = meter.read_energy()
        for _ in range(40):
            stub.clock.sleep(0.05)
            meter.read_energy()
        energy = window_energy(start, meter.read_energy())
    true_mj = 1_000 * (100 * 1.25 + 600 * 0.75)
    assert energy.energy_mj is not None
    assert energy.uncertainty_mj is not None
    assert 0.3 * true_mj < abs(energy.energy_mj - true_mj) <= energy.uncertainty_mj


def test_integrated_power_with_a_hole_in_it_starts_over(load: Load) -> None:
    stub = load(one_board(failures=(NO_COUNTER,)))
    with metered(stub) as meter:
        start = meter.read_energy()
        stub.clock.sleep(5.0)
        energy = window_energy(start, meter.read_energy())
    assert energy.energy_mj is None
    assert Flag.COUNTER_RESET in energy.flags


def test_without_counter_and_power_every_reading_is_none_with_the_reason(load: Load) -> None:
    no_usage = Failure("nvmlDeviceGetPowerUsage", NOT_SUPPORTED)
    stub = load(one_board(failures=(NO_COUNTER, NO_INSTANT, NO_AVERAGE, no_usage)))
    with metered(stub) as meter:
        assert (meter.device.method, meter.device.scope) == (None, None)
        energy, power = meter.read_energy(), meter.read_power()
    assert energy.energy_mj is None
    assert "nvmlDeviceGetTotalEnergyConsumption: Not Supported" in (energy.reason or "")
    assert power.power_mw is None
    assert "nvmlDeviceGetPowerUsage: Not Supported" in (power.reason or "")


def test_a_counter_that_may_not_be_read_is_replaced_by_power_and_says_why(load: Load) -> None:
    stub = load(one_board(failures=(Failure("nvmlDeviceGetTotalEnergyConsumption", NO_PERMISSION),)))
    with metered(stub) as meter:
        assert meter.device.method == "nvml.power"
        assert "not permitted" in (meter.device.reason or "")


def test_a_driver_that_is_too_old_for_a_function_lacks_that_alone(load: Load) -> None:
    old = (
        Failure("nvmlDeviceGetCurrentClocksEventReasons", FUNCTION_NOT_FOUND),
        Failure("nvmlDeviceGetComputeRunningProcesses_v3", FUNCTION_NOT_FOUND),
        Failure("field:185:0", NOT_SUPPORTED),
        Failure("field:186:0", NOT_SUPPORTED),
    )
    stub = load(one_board(failures=old, throttles=((0x4, ALWAYS),), processes=((100, ALWAYS),)))
    with metered(stub) as meter:
        state = meter.read_state()
    assert state.process_ids == (100,)
    assert state.throttle_reasons == ("sw_power_cap",)
    assert state.sm_clock_mhz == 1980


def test_a_counter_reset_inside_a_window_is_refused(load: Load) -> None:
    stub = load(one_board(resets=(10.0,)))
    with metered(stub) as meter:
        stub.clock.set(5.0)
        start = meter.read_energy()
        stub.clock.set(15.0)
        energy = window_energy(start, meter.read_energy())
    assert energy.energy_mj is None
    assert energy.flags == (Flag.ENERGY_UNKNOWN, Flag.COUNTER_RESET)


def test_a_failing_read_is_none_for_as_long_as_it_fails(load: Load) -> None:
    stub = load(one_board(failures=(Failure("nvmlDeviceGetTotalEnergyConsumption", TIMEOUT, (5, 6)),)))
    with metered(stub) as meter:
        stub.clock.set(4.0)
        start = meter.read_energy()
        stub.clock.set(5.5)
        failed = meter.read_energy()
        stub.clock.set(7.0)
        energy = window_energy(start, meter.read_energy())
    assert failed.energy_mj is None
    assert "Timeout" in (failed.reason or "")
    assert energy.energy_mj == pytest.approx(300_000, abs=1)


def test_a_lost_board_is_none_with_a_reason_and_a_window_over_the_loss_is_refused(load: Load) -> None:
    stub = load(one_board(lost=(10.0, 20.0)))
    with metered(stub) as meter:
        stub.clock.set(5.0)
        start = meter.read_energy()
        stub.clock.set(15.0)
        lost = meter.read_energy()
        power, state = meter.read_power(), meter.read_state()
        stub.clock.set(25.0)
        energy = window_energy(start, meter.read_energy())
    assert lost.energy_mj is None
    assert "fell off the bus" in (lost.reason or "")
    assert power.power_mw is None
    assert state.sm_clock_mhz is None
    assert any("fell off the bus" in reason for reason in state.reasons)
    assert Flag.COUNTER_RESET in energy.flags


def test_a_driver_reload_is_survived_but_no_window_spans_it(load: Load) -> None:
    script = StubScript(boards=(StubBoard(counter_mj=0, power=((0, 100),)),), reloads=(10.0,))
    stub = load(script)
    with metered(stub) as meter:
        stub.clock.set(1.0)
        start = meter.read_energy()
        stub.clock.set(100.0)
        gone = meter.read_energy()
        stub.clock.set(100.5)
        back = meter.read_energy()
        stub.clock.set(110.5)
        later = meter.read_energy()
    assert gone.energy_mj is None
    assert "driver was unloaded or replaced" in (gone.reason or "")
    assert back.energy_mj is not None
    assert start.energy_mj is not None
    assert back.energy_mj > start.energy_mj, "so that the sign of the difference does not give it away"
    assert Flag.COUNTER_RESET in window_energy(start, back).flags
    assert window_energy(back, later).energy_mj == pytest.approx(1_000_000, abs=1)


def test_a_driver_reload_that_a_reading_of_power_noticed_is_between_the_energies_too(load: Load) -> None:
    stub = load(StubScript(boards=(StubBoard(counter_mj=0, power=((0, 100),)),), reloads=(10.0,)))
    with metered(stub) as meter:
        stub.clock.set(1.0)
        start = meter.read_energy()
        stub.clock.set(100.0)
        assert meter.read_power().power_mw is None
        stub.clock.set(102.0)
        assert meter.read_power().power_mw == 100_000
        energy = window_energy(start, meter.read_energy())
    assert Flag.COUNTER_RESET in energy.flags


def test_a_driver_that_stays_away_is_asked_for_at_most_once_a_second(load: Load) -> None:
    away = Failure("nvmlInitWithFlags", DRIVER_NOT_LOADED, (10.0, 20.0))
    stub = load(StubScript(reloads=(10.0,), failures=(away,)))
    with metered(stub) as meter:
        stub.clock.set(11.0)
        asked = stub.calls("nvmlInitWithFlags")
        readings = []
        for _ in range(50):
            stub.clock.sleep(0.1)
            readings.append(meter.read_energy())
        assert stub.calls("nvmlInitWithFlags") - asked <= 6
        assert all(reading.energy_mj is None and reading.reason for reading in readings)
        assert "not loaded" in (readings[-1].reason or "")
        stub.clock.set(25.0)
        assert meter.read_energy().energy_mj is not None


def test_a_closed_meter_reads_none_and_closes_twice(load: Load) -> None:
    stub = load(one_board())
    with metered(stub) as meter:
        meter.close()
        meter.close()
        reading = meter.read_energy()
    assert reading.energy_mj is None
    assert reading.reason == "the meter is closed"


def test_meters_of_one_process_close_for_themselves_alone(load: Load) -> None:
    stub = load(one_board())
    with metered(stub) as first:
        with metered(stub) as second:
            assert second.read_energy().energy_mj is not None
        assert first.read_energy().energy_mj is not None


def test_slices_of_a_board_are_metered_as_their_board_labelled_and_counted_once(load: Load) -> None:
    slices = ("MIG-aaaa", "MIG-bbbb")
    stub = load(one_board(slices=slices))
    with metered(stub, slices[0]) as one, metered(stub, slices[1]) as two:
        assert one.device.uuid == two.device.uuid == UUID
        assert "MIG-aaaa is a slice" in (one.device.reason or "")
        stub.clock.set(10.0)
        starts = one.read_energy(), two.read_energy()
        stub.clock.set(20.0)
        energies = [
            window_energy(start, m.read_energy()) for start, m in zip(starts, (one, two), strict=True)
        ]
        devices = one.device, two.device
    assert all(energy.flags == (Flag.MIG_PARENT,) for energy in energies)
    assert len({(device.host, device.uuid) for device in devices}) == 1, "so that sums have the board once"
    assert [energy.energy_mj for energy in energies] == pytest.approx([1_000_000] * 2, abs=1), "never a share"


def test_whoever_computes_on_a_divided_board_has_a_slice_of_it_also_under_the_board_s_own_uuid(
    load: Load,
) -> None:
    stub = load(one_board(slices=("MIG-aaaa",)))
    with metered(stub) as meter:
        assert "of which what computes here is a slice" in (meter.device.reason or "")
        assert meter.read_energy().flags == (Flag.MIG_PARENT,)


def test_a_superchip_is_metered_as_gpu_alone_unless_its_module_is_asked_for(load: Load) -> None:
    stub = load(one_board(name="NVIDIA GH200 480GB", module_extra_w=150.0))
    with metered(stub) as gpu, metered(stub, scope="module") as module:
        assert (gpu.device.scope, module.device.scope) == ("gpu", "module")
        assert "CPU included" in (gpu.device.reason or "")
        assert (gpu.read_power().power_mw, module.read_power().power_mw) == (100_000, 250_000)
        stub.clock.set(10.0)
        starts = gpu.read_energy(), module.read_energy()
        stub.clock.set(20.0)
        alone = window_energy(starts[0], gpu.read_energy())
        whole = window_energy(starts[1], module.read_energy())
        mixed = window_energy(starts[0], module.read_energy())
    assert (alone.scope, whole.scope) == ("gpu", "module")
    assert alone.uncertainty_mj == pytest.approx(0.1 * 700_000, rel=0.03)
    assert whole.uncertainty_mj == pytest.approx(0.1 * 250_000, rel=0.03), "the limit is not the module's"
    assert alone.energy_mj == pytest.approx(1_000_000, abs=1)
    assert whole.energy_mj == pytest.approx(2_500_000, abs=1)
    assert Flag.METHOD_CHANGED in mixed.flags


def test_a_module_that_a_board_does_not_have_is_none_with_a_reason(load: Load) -> None:
    with metered(load(one_board()), scope="module") as meter:
        assert meter.device.method is None
        assert "NVML_FI_DEV_ENERGY: Not Supported" in (meter.read_energy().reason or "")
        assert "metered with `measurement.gpu_scope: gpu`" in (meter.device.reason or "")


def test_a_module_with_two_gpus_is_never_one_gpus_figure(load: Load) -> None:
    stub = load(one_board(name="NVIDIA GB200", module_extra_w=150.0))
    with metered(stub) as gpu, metered(stub, scope="module") as module:
        assert gpu.read_energy().flags == ()
        assert module.read_energy().flags == (Flag.MODULE_SHARED,)
        assert "the whole module, which has 2 GPUs" in (module.device.reason or "")
    assert blocking([Flag.MODULE_SHARED]) == (Flag.MODULE_SHARED,)


def test_two_processes_on_a_board_flag_it_shared(load: Load) -> None:
    stub = load(one_board(processes=((100, ALWAYS), (200, (10.0, 20.0)))))
    with metered(stub) as meter:
        alone = meter.read_state()
        stub.clock.set(15.0)
        shared = meter.read_state()
    assert (alone.process_ids, shared.process_ids) == ((100,), (100, 200))
    assert state_flags([alone], OwnProcesses.of([100])) == ()
    assert state_flags([alone, shared], OwnProcesses.of([100])) == (Flag.BOARD_SHARED,)
    assert state_flags([shared], OwnProcesses.of([100, 200])) == ()
    # A driver that hides its list from a container denies nothing.
    hidden = alone.model_copy(update={"process_ids": ()})
    assert state_flags([hidden, hidden], OwnProcesses.of([None])) == (Flag.COMPANY_UNKNOWN,)
    assert state_flags([hidden, alone], OwnProcesses.of([None])) == ()
    assert state_flags([hidden, shared], OwnProcesses.of([None])) == (Flag.BOARD_SHARED,)


def test_throttling_for_heat_and_holding_a_power_limit_are_different_flags(load: Load) -> None:
    throttles = ((0x4, (10.0, 20.0)), (0x20, (30.0, 40.0)), (0x1, ALWAYS), (0x400, (50.0, 60.0)))
    stub = load(one_board(throttles=throttles))
    states = []
    with metered(stub) as meter:
        for seconds in (5.0, 15.0, 35.0, 55.0):
            stub.clock.set(seconds)
            states.append(meter.read_state())
    assert [state.throttle_reasons for state in states] == [
        (),
        ("sw_power_cap",),
        ("sw_thermal_slowdown",),
        ("bit_0x400",),
    ]
    nobody = OwnProcesses.of([])
    assert [state_flags([state], nobody) for state in states] == [
        (),
        (Flag.POWER_CAPPED,),
        (Flag.THROTTLED,),
        (),
    ]


def test_a_board_that_is_lost_while_it_is_opened_can_come_back(load: Load) -> None:
    stub = load(
        StubScript(
            boards=(StubBoard(failures=(Failure("nvmlDeviceGetTotalEnergyConsumption", 15, (-1, 5)),)),)
        )
    )
    with metered(stub) as meter:
        assert meter.device.method == "nvml.counter"
        assert meter.read_energy().energy_mj is None
        stub.clock.set(6.0)
        assert meter.read_energy().energy_mj is not None


def test_a_meter_for_power_alone_opens_without_watching_the_counter(load: Load) -> None:
    for failures in ((), (NO_COUNTER,)):
        stub = load(one_board(failures=failures))
        session = NvmlSession()
        session.open()
        found = find_board(session, UUID)
        opened_s = stub.clock.now_s
        with NvmlMeter(
            session, found, "host", monotonic=stub.clock.monotonic, sleep=stub.clock.sleep, power_only=True
        ) as meter:
            assert stub.clock.now_s == opened_s
            assert meter.read_power().power_mw == 100_000
            reading = meter.read_energy()
            assert reading.energy_mj is not None or "no energy counter" in (reading.reason or "")
