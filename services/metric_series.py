"""From blocks of metric points to the series that are shown: chosen, in order of step, thinned out."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from phantom_core.protocol import Carried
from services.errors import QueryError
from services.metric_blocks import Points, unpack
from services.summaries import name_of
from services.views import MetricSeries

BlockRow = tuple[int, int, bytes]
"""Attempt, first step, packed points."""


def series_of(
    rows: Sequence[BlockRow],
    attempt: int,
    carried: Sequence[Carried],
    names: Sequence[str],
    max_points: int | None,
) -> tuple[MetricSeries, ...]:
    """The series of one attempt and of what it had gone on from.

    Args:
        rows: Blocks, ordered by attempt and event.
        attempt: Which start of the run.
        carried: Parts of earlier starts that count as its own, the earliest first.
        names: Only these metrics; empty for all.
        max_points: Points per metric at most; None takes all.

    Returns:
        One for each metric that has points, by name. What was told of one step is in the order of the events.

    Raises:
        QueryError: `max_points` leaves no room for a series' ends.
    """
    attempts, first_steps, packed = zip(*rows, strict=True) if rows else ((), (), ())
    points = unpack(first_steps, packed)
    counts = _of_attempt(points, np.array(attempts, np.intp), attempt, carried)
    found = []
    for place, name in enumerate(points.names):
        if names and name not in names:
            continue
        (chosen,) = np.nonzero(counts & (points.name == place))
        if len(chosen):
            ordered = chosen[np.lexsort((points.block[chosen], points.step[chosen]))]
            found.append(_series(name, points, _thinned(ordered, max_points)))
    return tuple(found)


def _of_attempt(
    points: Points, attempts: NDArray[np.intp], attempt: int, carried: Sequence[Carried]
) -> NDArray[np.bool_]:
    """Which points are the attempt's, or come from before the checkpoints that it had gone on from; (n,)."""
    of_point = attempts[points.block]
    chosen: NDArray[np.bool_] = of_point == attempt
    first = -1
    for each in carried:
        chosen |= (of_point == each.attempt) & (points.step > first) & (points.step <= each.steps)
        first = each.steps
    return chosen


def _thinned(ordered: NDArray[np.intp], most: int | None) -> NDArray[np.intp]:
    if most is None or len(ordered) <= most:
        return ordered
    if most < 2:
        raise QueryError(f"max_points = {most}; it must be 2 or more, for the first and the last point")
    last = len(ordered) - 1
    return ordered[[round(number * last / (most - 1)) for number in range(most)]]


def _series(name: str, points: Points, chosen: NDArray[np.intp]) -> MetricSeries:
    values = points.value[chosen]
    shown: list[float | None] = values.tolist()
    (strange,) = np.nonzero(~np.isfinite(values))
    non_finite = {int(index): name_of(float(values[index])) for index in strange}
    for index in non_finite:
        shown[index] = None
    # The arrays' types are what is asked for; checking 16,000 numbers again would take half of the time.
    return MetricSeries.model_construct(
        name=name,
        step=tuple(points.step[chosen].tolist()),
        value=tuple(shown),
        non_finite=non_finite,
        energy_mj=_known(points.energy_mj[chosen]),
        training_s=_known(points.training_s[chosen]),
    )


def _known(figures: NDArray[np.float64]) -> tuple[float | None, ...]:
    """Figures, None where NaN says that one is unknown."""
    unknown = np.isnan(figures)
    if unknown.all():
        return (None,) * len(figures)
    known: list[float | None] = figures.tolist()
    for index in np.nonzero(unknown)[0].tolist():
        known[index] = None
    return tuple(known)
