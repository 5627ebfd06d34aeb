"""A 95 % interval for the geometric mean of paired ratios, sound for as few as three pairs.

A percentile bootstrap of n numbers is too narrow by about sqrt((n - 1) / n) z / t, and can't leave their
range. Hesterberg (2015, The American Statistician 69:4, section 5.3) widens its level to

    alpha' / 2 = Phi( -sqrt(n / (n - 1)) t_{n-1, alpha/2} )

which mends the first fault, not the second: three numbers bracket their mean only three times in four. So
each end is the outer one of that interval and of Student's t interval, which is exact for normal log-ratios
of any number. A test simulates the coverage. Torch-free.

Where measuring went on until the interval was narrow enough, it stopped where the spread looked small, so an
interval made as if the number of pairs had been fixed covers the truth too seldom (0.92 instead of 0.95 at worst).
Made at the level `SEQUENTIAL_LEVEL` it covers 0.95 again from five rounds on; see `phantom_core.precision`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95
"""Confidence of every interval."""
SEQUENTIAL_LEVEL = 0.97
"""Level at which an interval is made that decided itself when measuring stopped, to hold with `LEVEL`."""
RESAMPLES = 9_999
"""Bootstrap samples of few pairs, whose widened level looks far into the tails."""
RESAMPLES_OF_MANY = 1_999
"""Bootstrap samples from `MANY_PAIRS` pairs on, where the level is nearly the plain one."""
MANY_PAIRS = 30
LARGEST_LOG_RATIO = 300.0
"""Further apart no two figures are taken to be, so that every end of an interval is a finite number."""
NUMBERS_AT_ONCE = 1_000_000
"""Numbers that resampling holds in memory at a time."""
FEWEST_PAIRS = 3
"""Pairs below which no interval is given."""
FEWEST_SEQUENTIAL_PAIRS = 5
"""Pairs before which no interval may decide that measuring stops: the spread of fewer is a lottery."""


@dataclass(frozen=True)
class RatioInterval:
    """Geometric mean of ratios, and where the true one lies with 95 % confidence."""

    ratio: float
    """Geometric mean."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""


def ratio_intervals(
    log_ratios: Sequence[Sequence[float]], seed: int, level: float = LEVEL
) -> list[RatioInterval]:
    """Intervals for several series of paired log-ratios of equal length.

    Args:
        log_ratios: One row for each series, one column for each pair; natural logarithms, all finite.
        seed: Of the resampling; equal seeds give equal intervals.
        level: Confidence that they are made for.

    Returns:
        One interval for each series.

    Raises:
        ValueError: Fewer than three pairs.
    """
    # SciPy takes a second to load, which whoever compares nothing yet need not spend.
    import numpy as np
    from scipy import stats

    data = np.clip(np.asarray(log_ratios, dtype=np.float64), -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    if data.ndim != 2 or data.shape[1] < FEWEST_PAIRS:
        raise ValueError(f"log-ratios of shape {data.shape}: an interval needs {FEWEST_PAIRS} pairs or more")
    pairs = data.shape[1]
    means = data.mean(axis=1)
    t = stats.t.ppf(0.5 + level / 2, pairs - 1)
    half_widths = t * data.std(axis=1, ddof=1) / np.sqrt(pairs)
    tail = stats.norm.cdf(-np.sqrt(pairs / (pairs - 1)) * t)
    bootstrap = stats.bootstrap(
        (data,),
        np.mean,
        axis=1,
        n_resamples=RESAMPLES if pairs < MANY_PAIRS else RESAMPLES_OF_MANY,
        batch=max(1, NUMBERS_AT_ONCE // data.size),
        confidence_level=1 - 2 * tail,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    # The mean itself is among them, or rounding would put it outside the interval of equal numbers.
    low = np.minimum(np.minimum(means - half_widths, bootstrap.low), means)
    high = np.maximum(np.maximum(means + half_widths, bootstrap.high), means)
    return [
        RatioInterval(float(np.exp(mean)), float(np.exp(start)), float(np.exp(end)))
        for mean, start, end in zip(means, low, high, strict=True)
    ]
