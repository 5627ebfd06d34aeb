import math

import pytest

from phantom_core.meters.update_period import BUDGET_S, measured_period_s
from tests.nvml_stub.harness import Clock


def counted(clock: Clock, moves_s: tuple[float, ...]) -> float | None:
    """Measures a counter that moves at the given seconds."""
    return measured_period_s(lambda: sum(t <= clock.now_s for t in moves_s), clock.monotonic, clock.sleep)


@pytest.mark.parametrize("look_s", [0.002, 0.007, 0.033])
@pytest.mark.parametrize("phase_s", [0.0, 0.04, 0.099])
def test_a_period_is_never_taken_too_short_however_coarsely_the_counter_is_looked_at(
    look_s: float, phase_s: float
) -> None:
    clock = Clock()
    measured_s = measured_period_s(
        lambda: math.floor((clock.now_s + phase_s) / 0.1 + 1e-9),
        clock.monotonic,
        lambda _: clock.sleep(look_s),
    )
    assert measured_s is not None
    assert 0.1 - 1e-9 <= measured_s <= 0.1 + 2 * look_s + 1e-9


def test_of_several_pauses_the_longest_counts() -> None:
    assert counted(Clock(), (0.02, 0.04, 0.13, 0.15, 0.17)) == pytest.approx(0.09, abs=0.003)


def test_a_counter_that_moves_once_or_not_at_all_or_can_not_be_read_has_no_period() -> None:
    for moves_s in ((0.1,), ()):
        clock = Clock()
        assert counted(clock, moves_s) is None
        assert clock.now_s < BUDGET_S + 0.01
    clock = Clock()
    assert measured_period_s(lambda: None, clock.monotonic, clock.sleep) is None
