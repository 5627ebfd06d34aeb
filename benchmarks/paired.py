"""How much more, or how many times as much, one thing takes than another, from pairs measured in turn."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.stats

LEVEL = 0.95
FEWEST_PAIRS = 3
"""Differences below which no interval is given."""


@dataclass(frozen=True)
class PairedRatio:
    """The median of ratios within pairs, and where it lies with at least 95 % confidence."""

    ratio: float
    """Median."""
    low: float | None
    """Lower end; None below six pairs, which can't give such an interval."""
    high: float | None
    """Upper end."""
    pairs: int
    """How many."""


def paired_ratio(ones: Sequence[float], others: Sequence[float]) -> PairedRatio:
    """Median of one / other over pairs, with the interval between order statistics.

    A hiccup of the host in one block spoils one pair and moves a median hardly at all. The interval goes from the k-th
    smallest ratio to the k-th largest, with the largest k for which 1 - 2 P(B < k) >= 0.95, B ~ Binomial(n, 1/2): it
    holds the median whatever the ratios' distribution (David and Nagaraja 2003, Order Statistics, 7.1), which a
    bootstrap of ten medians does only roughly.

    Args:
        ones: One of each pair; positive.
        others: The other of each pair; positive.

    Raises:
        ValueError: No pairs, or a different number on both sides.
    """
    ratios = sorted(one / other for one, other in zip(ones, others, strict=True))
    n = len(ratios)
    if n == 0:
        raise ValueError("a ratio needs at least one pair")
    k = _outermost(n)
    low, high = (None, None) if k == 0 else (ratios[k - 1], ratios[n - k])
    return PairedRatio(statistics.median(ratios), low, high, n)


def _outermost(n: int) -> int:
    """Largest k with 2 P(B < k) <= 0.05; 0 if there is none."""
    k, below = 0, 0.0
    while True:
        below += math.comb(n, k) / 2**n
        if 2 * below > 1 - LEVEL:
            return k
        k += 1


def paired_difference(
    whole: Sequence[float | None], without: Sequence[float | None]
) -> dict[str, float] | None:
    """What the whole takes more, paired by round, with Student's 95 % interval.

    Args:
        whole: One of each pair; None where unknown.
        without: The other of each pair.

    Returns:
        `mean`, `low` and `high`; None if anything is unknown, or there are fewer than three pairs.

    Raises:
        ValueError: A different number on both sides.
    """
    pairs = list(zip(whole, without, strict=True))
    values = [one - other for one, other in pairs if one is not None and other is not None]
    if len(values) < len(pairs) or len(values) < FEWEST_PAIRS:
        return None
    t = scipy.stats.t.ppf(0.5 + LEVEL / 2, len(values) - 1)
    half = float(t * np.std(values, ddof=1) / np.sqrt(len(values)))
    mean = statistics.fmean(values)
    return {"mean": mean, "low": mean - half, "high": mean + half}
