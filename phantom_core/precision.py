"""How precise a comparison is, how many rounds it needs, and whether enough were made. Torch-free.

An interval is ± precision if both of its ends lie within a factor of 1 + precision of the ratio. With the spread s
of the paired log-ratios so far, n rounds give Student's half-width t_{n-1} s / sqrt(n), so n rounds suffice from

    t_{n-1} s / sqrt(n) <= ln(1 + precision)

on. Stopping there (Chow and Robbins 1965, Annals of Mathematical Statistics 36:2) favours rounds whose spread
happens to be small; `intervals.SEQUENTIAL_LEVEL` and at least `FEWEST_SEQUENTIAL_PAIRS` rounds make up for it.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phantom_core.intervals import (
    FEWEST_PAIRS,
    FEWEST_SEQUENTIAL_PAIRS,
    LEVEL,
    SEQUENTIAL_LEVEL,
    RatioInterval,
    ratio_intervals,
)
from phantom_core.spec import MeasurementSpec


def half_width(interval: RatioInterval) -> float:
    """How far the farther end lies from the ratio, as a share: 0.02 is ± 2 %."""
    return max(interval.high / interval.ratio, interval.ratio / interval.low) - 1


def rounds_for_precision(log_ratios: Sequence[float], precision: float, level: float = LEVEL) -> int | None:
    """Rounds after which the interval can be expected to be ± precision, going by the spread so far.

    Args:
        log_ratios: ln(arm / baseline) of each round so far; finite.
        precision: Wished half-width as a share of the ratio, such as 0.02.
        level: Confidence of the interval.

    Returns:
        Rounds altogether, those made included; None while there are too few to know their spread.

    Raises:
        ValueError: The precision is not positive.
    """
    if not precision > 0:
        raise ValueError(f"precision = {precision}: must be a positive share, such as 0.02 for two per cent")
    if len(log_ratios) < FEWEST_PAIRS:
        return None
    from scipy import stats

    spread = statistics.stdev(log_ratios)
    wished = math.log1p(precision)

    def suffices(rounds: int) -> bool:
        return bool(stats.t.ppf(0.5 + level / 2, rounds - 1) * spread <= wished * math.sqrt(rounds))

    enough = FEWEST_PAIRS
    while not suffices(enough):
        enough *= 2
    too_few = max(FEWEST_PAIRS - 1, enough // 2)
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        too_few, enough = (too_few, middle) if suffices(middle) else (middle, enough)
    return enough


@dataclass(frozen=True)
class Enough:
    """Why no more rounds are made."""

    message: str
    """One sentence for a person."""
    is_precise: bool
    """Whether every arm that could be compared is precise; False if there was nothing to compare."""


def enough_rounds(
    measurement: MeasurementSpec,
    rounds_made: int,
    figures: Mapping[str, Mapping[int, float]],
    baseline: str,
) -> Enough | None:
    """Whether `rounds: auto` has made enough rounds.

    Every arm is waited for, the controls too, except one that gave no pair in any of the first rounds: it
    fails each time, and more rounds would only cost.

    Args:
        measurement: With the wished precision, the fewest and the most rounds.
        rounds_made: Rounds of which every run has ended.
        figures: By arm and round, what the comparison rests on; positive and finite, missing where unknown.
        baseline: Arm that the others are compared with.

    Returns:
        Why it is enough; None if another round is to be made, and always where the rounds are a number.
    """
    if measurement.rounds != "auto" or rounds_made < measurement.min_rounds:
        return None
    known = _known_least(figures, baseline, measurement.seed)
    if known is None:
        return Enough(f"no arm could be compared with {baseline!r} in {rounds_made} rounds", is_precise=False)
    if known.width is None or not known.width <= measurement.precision:
        return None
    told = f"{known.arm!r} is known to ± {100 * known.width:.2g} % after {rounds_made} rounds"
    return Enough(
        f"{told}, and {100 * measurement.precision:g} % was asked for; no arm is known less well",
        is_precise=True,
    )


def rounds_to_expect(
    log_ratios: Sequence[float], rounds_made: int, precision: float, level: float = LEVEL
) -> int | None:
    """Rounds for a wished precision, if as many of them as so far give a pair; else as `rounds_for_precision`."""
    needed, paired = rounds_for_precision(log_ratios, precision, level), len(log_ratios)
    return None if needed is None else math.ceil(needed * max(rounds_made, paired) / paired)


def rounds_used_up(
    measurement: MeasurementSpec, figures: Mapping[str, Mapping[int, float]], baseline: str
) -> str | None:
    """What is to be said where `rounds: auto` has made all rounds that it may.

    Args:
        measurement: With the wished precision and the most rounds.
        figures: By arm and round, as `enough_rounds` takes them.
        baseline: Arm that the others are compared with.

    Returns:
        One sentence for a person; None if every arm is as precise as was wished, or the rounds are a number.
    """
    if measurement.rounds != "auto":
        return None
    known = _known_least(figures, baseline, measurement.seed)
    if known is None:
        return None
    said = f"max_rounds = {measurement.max_rounds} rounds were made"
    if known.width is None:
        pairs = len(known.log_ratios)
        return f"{said}, of which {pairs} could be paired for {known.arm!r}; {FEWEST_SEQUENTIAL_PAIRS} are needed"
    if known.width <= measurement.precision:
        return None
    expected = rounds_to_expect(
        known.log_ratios, measurement.max_rounds, measurement.precision, SEQUENTIAL_LEVEL
    )
    return (
        f"{said}, and {known.arm!r} is known to ± {100 * known.width:.2g} % only; "
        f"± {100 * measurement.precision:g} % was asked for, which can be expected of {expected} rounds"
    )


@dataclass(frozen=True)
class _KnownLeast:
    """The arm whose ratio is known least well."""

    arm: str
    log_ratios: Sequence[float]
    width: float | None
    """Half-width of its interval; None where it has too few pairs for one."""


def _known_least(figures: Mapping[str, Mapping[int, float]], baseline: str, seed: int) -> _KnownLeast | None:
    """How well every arm is known at least; None if none can be compared."""
    compared = _compared(figures, baseline)
    if not compared:
        return None
    fewest = min(compared, key=lambda arm: len(compared[arm]))
    if len(compared[fewest]) < FEWEST_SEQUENTIAL_PAIRS:
        return _KnownLeast(fewest, compared[fewest], None)
    widest, width = _widest(compared, seed)
    return _KnownLeast(widest, compared[widest], width)


def _compared(figures: Mapping[str, Mapping[int, float]], baseline: str) -> dict[str, list[float]]:
    """Log-ratios to the baseline of every arm that gave a pair."""
    reference = figures.get(baseline, {})
    paired = {
        arm: [
            math.log(values[number]) - math.log(reference[number])
            for number in sorted(values.keys() & reference.keys())
        ]
        for arm, values in figures.items()
        if arm != baseline
    }
    return {arm: log_ratios for arm, log_ratios in paired.items() if log_ratios}


def _widest(compared: Mapping[str, Sequence[float]], seed: int) -> tuple[str, float]:
    """The arm that is known least well, and the half-width of its interval."""
    widths = {
        arm: half_width(ratio_intervals([log_ratios], seed, SEQUENTIAL_LEVEL)[0])
        for arm, log_ratios in compared.items()
    }
    widest = max(widths, key=lambda arm: widths[arm])
    return widest, widths[widest]
