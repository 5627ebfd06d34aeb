"""Energy of short windows from a counter that moves ten times a second, against what was really drawn."""

import random

import pytest

from benchmarks.tick_windows import Clock, measured
from phantom_core.meters.base import EnergyReading, Instant, MeterBase, PowerReading
from phantom_core.protocol import BoardState, DeviceInfo

REST_W, BUSY_W, LINGERING_W = 120.0, 640.0, 150.0
READ_S = 0.002


class Board(MeterBase):
    """A board in simulated time: its counter moves every 100 ms, a read takes 2 ms."""

    def __init__(self, phase_s: float, period_s: float = 0.1) -> None:
        self.now_s = 100.0
        self.phase_s, self.period_s = phase_s, period_s
        self.work_s: tuple[float, float] | None = None
        self.epoch = 0
        self.device = DeviceInfo(
            host="h", uuid="GPU-1", kind="cuda", name="board", method="nvml.counter", scope="gpu"
        )

    @property
    def update_period_s(self) -> float:
        return self.period_s

    def true_j(self, until_s: float) -> float:
        """Joules since 0: at rest, at work, and a little more than at rest for 50 ms after work."""
        total = REST_W * until_s
        if self.work_s is not None:
            start, end = self.work_s
            total += (BUSY_W - REST_W) * max(0.0, min(until_s, end) - start)
            total += (LINGERING_W - REST_W) * max(0.0, min(until_s, end + 0.05) - end)
        return total

    def read_energy(self) -> EnergyReading:
        self.now_s += READ_S
        at_s = self.now_s - READ_S / 2
        moved_s = (at_s - self.phase_s) // self.period_s * self.period_s + self.phase_s
        return EnergyReading(
            Instant(0.0, at_s),
            round(1_000 * self.true_j(moved_s)),
            "nvml.counter",
            "gpu",
            uncertainty_mj=1_000 * self.period_s * 700.0,
            lag_s=self.period_s,
            epoch=self.epoch,
        )

    def read_power(self) -> PowerReading:
        return PowerReading(Instant(0.0, self.now_s), 1_000 * REST_W, "instant")

    def read_state(self) -> BoardState:
        raise NotImplementedError

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def work(self, seconds: float) -> None:
        self.work_s = (self.now_s, self.now_s + seconds)
        self.now_s += seconds


class Alone:
    def agree(self, ok: bool) -> bool:
        return ok


@pytest.mark.parametrize("seed", range(20))
def test_a_window_of_a_second_is_known_within_its_narrow_bound(seed: int) -> None:
    chance = random.Random(seed)
    board = Board(phase_s=chance.uniform(0, 0.1))
    board.now_s += chance.uniform(0, 1)
    seconds = chance.uniform(0.9, 1.1)
    clock = Clock(lambda: board.now_s, board.sleep)
    found = measured(Alone(), board, lambda: None, lambda: board.work(seconds), clock)
    assert found.method == "nvml.counter (ticks)"
    assert found.energy_mj is not None
    assert found.uncertainty_mj is not None
    assert found.duration_s == pytest.approx(seconds)
    assert abs(found.energy_mj - 1_000 * BUSY_W * seconds) <= found.uncertainty_mj
    assert found.uncertainty_mj <= 0.03 * found.energy_mj


def test_a_counter_that_moves_all_the_time_is_read_as_it_is() -> None:
    board = Board(phase_s=0.0, period_s=0.001)
    clock = Clock(lambda: board.now_s, board.sleep)
    found = measured(Alone(), board, lambda: None, lambda: board.work(1.0), clock)
    assert found.method == "nvml.counter"
    assert found.energy_mj == pytest.approx(1_000 * BUSY_W, rel=0.01)


def test_a_counter_that_started_over_gives_no_energy() -> None:
    board = Board(phase_s=0.0)
    clock = Clock(lambda: board.now_s, board.sleep)

    def work() -> None:
        board.work(1.0)
        board.epoch += 1

    found = measured(Alone(), board, lambda: None, work, clock)
    assert found.energy_mj is None
    assert found.reason is not None
    assert "started over" in found.reason
