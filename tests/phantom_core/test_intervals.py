"""The interval of a geometric mean ratio: covers the truth as often as it says, for very few pairs too."""

import math

import numpy as np
import pytest

from phantom_core.intervals import ratio_intervals

SERIES = 1_000


def coverage(noise: np.ndarray, true_log_ratio: float) -> float:
    """Share of the intervals that hold the true ratio."""
    found = []
    for start in range(0, len(noise), 100):
        found += ratio_intervals((noise[start : start + 100] + true_log_ratio).tolist(), seed=start)
    true = math.exp(true_log_ratio)
    return sum(each.low <= true <= each.high for each in found) / len(found)


@pytest.mark.parametrize("pairs", [3, 5, 10])
def test_normal_log_ratios_are_covered_95_times_in_a_hundred(pairs: int) -> None:
    noise = np.random.default_rng(pairs).normal(scale=0.02, size=(SERIES, pairs))
    # A thousand trials of a 95 % event scatter by 0.7 per cent; three times that is allowed for.
    assert 0.93 <= coverage(noise, math.log(0.7)) <= 0.98


@pytest.mark.parametrize("pairs", [3, 5, 10])
@pytest.mark.parametrize("shape", ["laplace", "uniform", "skewed"])
def test_other_shapes_are_covered_nine_times_in_ten_or_more(pairs: int, shape: str) -> None:
    random = np.random.default_rng(pairs)
    size = (SERIES, pairs)
    noise = {
        "laplace": lambda: random.laplace(size=size),
        "uniform": lambda: random.uniform(-1, 1, size=size),
        "skewed": lambda: random.gamma(2, size=size) - 2,
    }[shape]()
    assert coverage(0.01 * noise, 0.0) >= 0.90


def test_a_plain_percentile_bootstrap_would_not_cover_three_pairs() -> None:
    """Why it is widened; the figure that the module's docstring gives."""
    from scipy import stats

    noise = np.random.default_rng(0).normal(size=(SERIES, 3))
    plain = stats.bootstrap(
        (noise,), np.mean, axis=1, method="percentile", n_resamples=999, rng=np.random.default_rng(1)
    ).confidence_interval
    assert np.mean((plain.low <= 0) & (plain.high >= 0)) < 0.8


def test_the_ratio_is_the_geometric_mean_and_lies_inside() -> None:
    (found,) = ratio_intervals([[math.log(0.5), math.log(0.8), math.log(1.25)]], seed=1)
    assert found.ratio == pytest.approx((0.5 * 0.8 * 1.25) ** (1 / 3))
    assert found.low < found.ratio < found.high


def test_each_end_is_the_outer_one_of_bootstrap_and_student() -> None:
    (skewed,) = ratio_intervals([[0.0] * 9 + [1.0]], seed=1)
    # Student: 0.1 -+ 2.262 x 0.316 / sqrt(10). The resampled mean is binomial: 0.4 is its 99.1st percentile.
    assert math.log(skewed.low) == pytest.approx(0.1 - 0.2262, abs=1e-3)
    assert math.log(skewed.high) == pytest.approx(0.4)


def test_equal_pairs_make_an_interval_without_width() -> None:
    (found,) = ratio_intervals([[math.log(0.7)] * 5], seed=1)
    assert found.low == pytest.approx(found.ratio)
    assert found.high == pytest.approx(0.7)
    for equal in (0.1, 0.3, -0.7, 1e-17, 0.0):
        (found,) = ratio_intervals([[equal] * 3], seed=1)
        assert found.low <= found.ratio <= found.high


def test_swapping_the_arms_inverts_the_ratio() -> None:
    log_ratios = [0.1, 0.2, 0.15, 0.3]
    (found,) = ratio_intervals([log_ratios], seed=1)
    (swapped,) = ratio_intervals([[-each for each in log_ratios]], seed=1)
    assert swapped.ratio == pytest.approx(1 / found.ratio)
    assert swapped.low == pytest.approx(1 / found.high, rel=0.02)


def test_one_seed_gives_one_answer() -> None:
    log_ratios = [[0.1, 0.2, 0.15, 0.3], [0.0, 0.1, 0.2, 0.1]]
    assert ratio_intervals(log_ratios, seed=3) == ratio_intervals(log_ratios, seed=3)


@pytest.mark.parametrize("log_ratios", [[], [[]], [[0.1]], [[0.1, 0.2]]])
def test_fewer_than_three_pairs_have_no_interval(log_ratios: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="needs 3 pairs or more"):
        ratio_intervals(log_ratios, seed=1)
