import math

import numpy as np
import pytest

from phantom_core.flags import Flag
from phantom_core.meters.integration import integrate_power, sensor_period_s


def every(period_s: float, until_s: float, power_mw: float) -> list[tuple[float, float | None]]:
    return [(n * period_s, power_mw) for n in range(round(until_s / period_s) + 1)]


def test_constant_power_integrates_exactly_and_with_certainty() -> None:
    integral = integrate_power(every(0.1, 12, 300_000), 1.0, 11.0)
    assert integral.energy_mj == pytest.approx(3_000_000)
    assert integral.uncertainty_mj == 0
    assert integral.largest_gap_s == pytest.approx(0.1)
    assert integral.sample_count == pytest.approx(101, abs=1)
    assert integral.flags == ()


def test_edges_between_samples_are_interpolated() -> None:
    integral = integrate_power([(0, 0), (1, 1_000), (2, 2_000)], 0.5, 1.5)
    assert integral.energy_mj == pytest.approx(1_000)
    assert integral.sample_count == 1


def test_a_window_between_two_samples_is_interpolated() -> None:
    integral = integrate_power([(0, 0), (10, 10_000)], 4.0, 6.0)
    assert integral.energy_mj == pytest.approx(2 * 5_000)
    assert integral.sample_count == 0
    assert integral.largest_gap_s == pytest.approx(2.0)


def test_a_step_between_samples_is_inside_the_bound() -> None:
    integral = integrate_power([(0, 100.0), (1, 100.0), (2, 500.0), (3, 500.0)], 0, 3)
    assert integral.energy_mj is not None
    assert integral.uncertainty_mj is not None
    for step_s in (1.0, 1.3, 1.9, 2.0):
        true_mj = 100 * step_s + 500 * (3 - step_s)
        assert abs(integral.energy_mj - true_mj) <= integral.uncertainty_mj + 1e-9


def test_a_sensor_that_lags_widens_the_bound() -> None:
    samples: list[tuple[float, float | None]] = [(0, 100.0), (1, 200.0), (2, 300.0)]
    plain, lagging = (integrate_power(samples, 0, 2, sensor_period_s=lag) for lag in (0.0, 0.1))
    assert plain.uncertainty_mj == pytest.approx(100.0)
    assert lagging.uncertainty_mj == pytest.approx(120.0)


def test_what_a_sample_looks_back_on_depends_on_how_it_was_read() -> None:
    assert sensor_period_s("instant", 10) == 0.1
    assert sensor_period_s("average", 10) == 1.1
    assert sensor_period_s("average", 0.5) == 2.0
    assert sensor_period_s("estimate", 10) == 0.1


def test_an_edge_without_a_sample_beyond_it_holds_the_nearest() -> None:
    integral = integrate_power([(1, 100.0), (2, 100.0)], 0.5, 2.5)
    assert integral.energy_mj == pytest.approx(200.0)


def test_a_hole_is_a_gap_and_widens_the_bound() -> None:
    samples = [s for s in every(0.1, 10, 100.0) if not 4 < s[0] < 6] + [(3.05, 300.0)]
    integral = integrate_power(samples, 0, 10, rate_hz=10)
    assert integral.flags == (Flag.SAMPLER_GAP,)
    assert integral.largest_gap_s == pytest.approx(2.0)
    assert integral.uncertainty_mj is not None
    assert integral.uncertainty_mj > 2.0 * 200.0
    assert integral.energy_mj is not None


def test_a_hole_that_ends_where_the_window_begins_is_none_of_its_own() -> None:
    samples = [(0.0, 5.0), (0.1, 5.0), *((9.0 + n / 10, 100.0) for n in range(21)), (20.0, 5.0)]
    integral = integrate_power(samples, 9.0, 11.0, rate_hz=10.0)
    assert integral.energy_mj == pytest.approx(200.0)
    assert (integral.flags, integral.sample_count) == ((), 21)
    assert integral.largest_gap_s == pytest.approx(0.1)


def test_a_window_that_is_mostly_hole_has_no_integral() -> None:
    samples = [*every(0.1, 2, 100.0), (10.0, 100.0)]
    integral = integrate_power(samples, 0, 10, rate_hz=10)
    assert integral.energy_mj is None
    assert "no power samples" in (integral.reason or "")
    assert integral.flags == (Flag.SAMPLER_GAP,)


def test_order_repeats_and_unusable_samples_do_not_matter() -> None:
    good: list[tuple[float, float | None]] = [(2, 100.0), (0, 100.0), (1, 100.0), (1, 100.0), (3, 100.0)]
    bad: list[tuple[float, float | None]] = [
        (0.5, None),
        (1.5, math.nan),
        (1.6, math.inf),
        (1.7, -5.0),
        (math.nan, 1.0),
    ]
    integral = integrate_power(good + bad, 0, 3)
    assert integral.energy_mj == pytest.approx(300.0)
    assert integral.sample_count == 4


@pytest.mark.parametrize(
    ("samples", "start_s", "end_s", "words"),
    [
        ([], 0.0, 1.0, "no power sample"),
        ([(0.5, 100.0)], 0.0, 1.0, "one power sample"),
        ([(5.0, 1.0), (6.0, 1.0)], 0.0, 1.0, "no power sample"),
        ([(-5.0, 1.0), (-4.0, 1.0)], 0.0, 1.0, "no power sample"),
        ([(0.0, 1.0), (1.0, 1.0)], 1.0, 1.0, "lasts"),
        ([(0.0, 1.0), (1.0, 1.0)], 1.0, 0.0, "lasts"),
        ([(0.0, 1.0), (1.0, 1.0)], 0.0, math.nan, "lasts"),
    ],
)
def test_what_can_not_be_integrated_is_none_with_a_reason(
    samples: list[tuple[float, float | None]], start_s: float, end_s: float, words: str
) -> None:
    integral = integrate_power(samples, start_s, end_s)
    assert integral.energy_mj is None
    assert integral.uncertainty_mj is None
    assert words in (integral.reason or "")


def test_an_array_is_taken_as_the_same_samples() -> None:
    samples: list[tuple[float, float | None]] = [(2, 300.0), (0, 100.0), (1, None), (3, 50.0)]
    assert integrate_power(np.array(samples, dtype=float), 0, 3) == integrate_power(samples, 0, 3)


def test_a_crest_between_two_equal_samples_is_covered_by_the_slopes_beside_it() -> None:
    """Power 1000 - 100 t^2, seen at t = -1.5, -0.5, 0.5, 1.5; the window is the crest alone."""
    samples: list[tuple[float, float | None]] = [(t, 1_000 - 100 * t * t) for t in (-1.5, -0.5, 0.5, 1.5)]
    integral = integrate_power(samples, -0.5, 0.5, sensor_period_s=0.0)
    assert integral.energy_mj is not None
    assert integral.uncertainty_mj is not None
    true_mj = 1_000 - 100 / 12
    assert 0 < abs(integral.energy_mj - true_mj) <= integral.uncertainty_mj
