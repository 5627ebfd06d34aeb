"""Windows added up on ranks: what is unknown stays so, and how much longer a window must be for a precision."""

import dataclasses

import pytest

from ray_jobs.spent import Spent
from ray_jobs.window_clock import OpenWindow


def window(energy_mj: float | None, bound_mj: float | None, seconds: float = 2.0) -> OpenWindow:
    inside = OpenWindow(steps=10)
    inside.duration_s, inside.energy_mj, inside.uncertainty_mj = seconds, energy_mj, bound_mj
    return inside


def spent(*windows: OpenWindow) -> Spent:
    total = Spent()
    for each in windows:
        total = total.and_window(each)
    return total


HUNDRED_WATTS = window(200_000.0, 10_000.0)
"""Two seconds at 100 W, read by a counter that is up to 0.1 s old."""


def test_a_window_that_is_unknown_makes_the_sum_unknown() -> None:
    total = spent(HUNDRED_WATTS, window(None, None))
    assert (total.energy_mj, total.uncertainty_mj, total.steps, total.seconds) == (None, None, 20, 4.0)
    assert total.per_step_mj is None
    assert spent(HUNDRED_WATTS).per_step_mj == 20_000.0
    assert Spent().per_step_mj is None


def test_only_ranks_that_read_a_device_add_to_the_sum() -> None:
    reads, shares = spent(HUNDRED_WATTS), dataclasses.replace(spent(window(None, None)), reads_meter=False)
    assert Spent.by_all([reads, shares]).energy_mj == 200_000.0
    assert Spent.by_all([reads, reads]).energy_mj == 400_000.0
    assert Spent.by_all([shares]).energy_mj is None


@pytest.mark.parametrize(("precision", "seconds"), [(0.05, 2.0), (0.01, 10.0), (0.10, 0.0)])
def test_a_new_window_alone_must_last_as_long_as_its_edges_need(precision: float, seconds: float) -> None:
    total = dataclasses.replace(spent(HUNDRED_WATTS), uncertainty_mj=10_001.0)
    assert total.missing_s(precision, anew=True) == pytest.approx(seconds, rel=1e-3)


@pytest.mark.parametrize("precision", [0.04, 0.01, 0.001])
def test_windows_and_one_more_are_together_as_precise_as_asked(precision: float) -> None:
    for before in (spent(HUNDRED_WATTS), spent(HUNDRED_WATTS, HUNDRED_WATTS)):
        more_s = before.missing_s(precision)
        after = before.and_window(window(100_000.0 * more_s, 10_000.0, more_s))
        assert after.uncertainty_mj is not None
        assert after.energy_mj is not None
        assert after.uncertainty_mj / after.energy_mj == pytest.approx(precision)


def test_where_no_window_would_help_none_is_asked_for() -> None:
    estimated = dataclasses.replace(spent(HUNDRED_WATTS), is_estimate=True)
    assert estimated.missing_s(0.001) == 0
    assert spent(window(None, None)).missing_s(0.001) == 0
    assert spent(window(200_000.0, None)).missing_s(0.001) == 0
    assert Spent().missing_s(0.001) == 0
