"""Windows: barriers at both ends, a vote at the close, energy read even when the body fails."""

from collections.abc import Callable
from typing import Any

import pytest

from phantom_core.meters.base import EnergyReading, Instant, MeterBase, PowerReading
from phantom_core.protocol import BoardState, DeviceInfo, Window
from ray_jobs.window_clock import PeerFailed, WindowClock


class FakeMeter(MeterBase):
    """A board that draws 100 W by a clock that the test moves."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.now_s = 50.0
        self.broken = False
        self.device = DeviceInfo(
            host="host", uuid="GPU-1", kind="cuda", name="H100", method="nvml.counter", scope="gpu"
        )

    def _instant(self) -> Instant:
        return Instant(1.7e9 + self.now_s, self.now_s)

    def read_energy(self) -> EnergyReading:
        self.log.append("read")
        if self.broken:
            return EnergyReading(self._instant(), None, None, None, reason="gone")
        return EnergyReading(
            self._instant(), self.now_s * 100_000.0, "nvml.counter", "gpu", uncertainty_mj=0.0, lag_s=0.02
        )

    def read_power(self) -> PowerReading:
        return PowerReading(self._instant(), 100_000.0, "instant")

    def read_state(self) -> BoardState:
        raise NotImplementedError


class Bench:
    """A clock whose peers vote as the test says."""

    def __init__(self, *, metered: bool = True, charged: bool = True) -> None:
        self.log: list[str] = []
        self.peers: list[bool] = []
        """What the other ranks vote, in order; True once used up."""
        self.votes: list[bool] = []
        self.windows: list[Window] = []
        self.synchronizing: Callable[[], None] = lambda: None
        self.meter = FakeMeter(self.log)
        self.clock = WindowClock(
            self.meter if metered else None,
            agree=self._agree,
            synchronize=self._synchronize,
            emit=self._emit,
            charged=charged,
        )

    def _agree(self, ok: bool) -> bool:
        self.log.append("barrier")
        self.votes.append(ok)
        return ok and (self.peers.pop(0) if self.peers else True)

    def _synchronize(self) -> None:
        self.log.append("synchronize")
        self.synchronizing()

    def _emit(self, window: Window) -> None:
        self.log.append("emit")
        self.windows.append(window)


def test_a_window_is_read_between_barriers_and_told_after_the_second() -> None:
    bench = Bench()
    with bench.clock.window("training") as inside:
        inside.steps, inside.samples = 10, 640
        bench.log.append("train")
        bench.meter.now_s += 20
    order = ["synchronize", "barrier", "read", "train", "synchronize", "barrier", "read", "emit"]
    assert bench.log == order
    (window,) = bench.windows
    assert inside.duration_s == window.duration_s == 20
    assert inside.energy_mj == window.energy_mj == 20 * 100_000.0
    assert (window.steps, window.samples, window.phase, window.index) == (10, 640, "training", 0)
    assert (window.method, window.scope, window.host, window.device_uuid) == (
        "nvml.counter",
        "gpu",
        "host",
        "GPU-1",
    )
    assert window.started_monotonic_s == 50
    assert window.charged


def test_windows_of_each_phase_are_counted_apart() -> None:
    bench = Bench(charged=False)
    for phase in ("training", "evaluation", "training"):
        with bench.clock.window(phase):
            pass
    assert [(w.phase, w.index) for w in bench.windows] == [
        ("training", 0),
        ("evaluation", 0),
        ("training", 1),
    ]
    assert not any(window.charged for window in bench.windows)


def test_a_window_that_follows_another_begins_where_that_was_read() -> None:
    bench = Bench()
    with bench.clock.window("training"):
        bench.meter.now_s += 20
    bench.meter.now_s += 3
    bench.log.clear()
    with bench.clock.window("evaluation", follows=True) as inside:
        bench.meter.now_s += 4
    assert bench.log == ["synchronize", "barrier", "synchronize", "barrier", "read", "emit"]
    training, evaluation = bench.windows
    assert evaluation.started_monotonic_s == training.started_monotonic_s + training.duration_s == 70
    assert inside.duration_s == 7
    assert inside.energy_mj == 7 * 100_000.0
    bench.log.clear()
    with bench.clock.window("training"):
        bench.meter.now_s += 1
    assert bench.log.count("read") == 2
    assert bench.windows[-1].started_monotonic_s == 77


def test_the_first_window_reads_its_beginning_though_it_were_to_follow() -> None:
    bench = Bench()
    with bench.clock.window("evaluation", follows=True) as inside:
        bench.meter.now_s += 4
    assert bench.log.count("read") == 2
    assert inside.duration_s == 4


def test_a_window_follows_none_that_another_has_followed_or_that_never_opened() -> None:
    bench = Bench()
    with bench.clock.window("training"):
        bench.meter.now_s += 2
    bench.peers = [False]
    with pytest.raises(PeerFailed), bench.clock.window("evaluation", follows=True):
        pytest.fail("the body must not run")
    bench.meter.now_s += 9
    with bench.clock.window("evaluation", follows=True) as inside:
        bench.meter.now_s += 4
    assert inside.duration_s == 4, "what failed ranks did in between belongs to no window"


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), MemoryError()])
def test_a_body_that_raises_votes_no_and_its_energy_is_kept(error: BaseException) -> None:
    bench = Bench()

    def train() -> None:
        with bench.clock.window("training") as window:
            window.steps, window.samples = 100, 25_600
            bench.meter.now_s += 5
            raise error

    with pytest.raises(type(error)) as raised:
        train()
    assert raised.value is error
    assert bench.votes == [True, False]
    assert [window.energy_mj for window in bench.windows] == [5 * 100_000.0]
    assert [(window.steps, window.samples) for window in bench.windows] == [(0, 0)], (
        "how far it came is unknown"
    )
    assert bench.clock.peers_know(error)
    assert not bench.clock.peers_know(ValueError("bad"))


def test_a_device_that_fails_to_finish_the_body_votes_no() -> None:
    bench = Bench()
    with pytest.raises(RuntimeError) as raised, bench.clock.window("training"):
        bench.synchronizing = _fail
    assert bench.votes == [True, False]
    assert bench.clock.peers_know(raised.value)
    assert len(bench.windows) == 1


def test_a_device_that_fails_before_the_window_votes_no_there() -> None:
    bench = Bench()
    bench.synchronizing = _fail
    with pytest.raises(RuntimeError) as raised, bench.clock.window("training"):
        pytest.fail("the body must not run")
    assert bench.votes == [False]
    assert bench.clock.peers_know(raised.value)
    assert bench.windows == []


def test_a_peer_that_failed_ends_the_window_here_too_with_its_energy() -> None:
    bench = Bench()
    bench.peers = [True, False]
    with pytest.raises(PeerFailed, match="training"), bench.clock.window("training"):
        bench.meter.now_s += 3
    assert bench.votes == [True, True]
    assert [window.energy_mj for window in bench.windows] == [3 * 100_000.0]


def test_a_peer_that_failed_before_keeps_the_window_from_opening() -> None:
    bench = Bench()
    bench.peers = [False]
    with pytest.raises(PeerFailed, match="before"), bench.clock.window("training"):
        pytest.fail("the body must not run")
    assert bench.windows == []


def test_an_error_outside_of_windows_is_known_to_nobody() -> None:
    bench = Bench()
    with bench.clock.window("training"):
        pass
    assert not bench.clock.peers_know(OSError("disk full"))


def test_a_rank_that_reads_no_device_keeps_the_barriers_and_the_time_alone() -> None:
    bench = Bench(metered=False)
    with bench.clock.window("training") as inside:
        pass
    assert bench.votes == [True, True]
    assert bench.windows == []
    assert inside.energy_mj is None
    assert inside.duration_s is not None


def test_energy_that_cannot_be_read_is_none_with_a_reason() -> None:
    bench = Bench()
    with bench.clock.window("training") as inside:
        bench.meter.broken = True
    (window,) = bench.windows
    assert inside.energy_mj is None
    assert window.energy_mj is None
    assert window.reason


def _fail(*_: Any) -> None:
    raise RuntimeError("CUDA error")
