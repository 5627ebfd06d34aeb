"""Batches that bring metric points and nothing else, read without an object for each point.

Most of what a job tells while it trains is such a batch. Where all of it is as `phantom_core.protocol` writes it, JSON
becomes columns and packed blocks at once. Whatever is unusual is left to `EventBatch`, which takes more, and says what
is wrong: what is read here is what it would have read.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from phantom_core.protocol import SAMPLER_SOURCE, Event, EventBatch
from services.event_limits import LARGEST, refusal
from services.metric_packing import Block, pack_columns

MOST_EVENTS = 64
"""Events of a batch: whoever reads them between other things has others wait for each."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
"""As `MetricPoint.name`."""
_KNOWN = ("energy_mj", "training_s")
"""What a point may have besides step, name and value."""
_EXACT = 2**53
"""Whole numbers up to here are floats, too, whoever converts them."""
_STRANGE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Floats that JSON has no numbers for."""


@dataclass(frozen=True, slots=True)
class PointEvent:
    """One event with its points; the event's own fields are as in `Event`."""

    event: Event
    """Without its points."""
    point_count: int
    """How many it had."""
    block: Block | None
    """All of them; None if there was none."""

    @property
    def is_of_ranks(self) -> bool:
        """Whether it is a sign of life of the job's ranks."""
        return not self.event.source.startswith(SAMPLER_SOURCE)


@dataclass(frozen=True, slots=True)
class PointBatch:
    """Events of one experiment's runs, no two the same, none of which is to be refused."""

    experiment_id: str
    """The experiment."""
    events: tuple[PointEvent, ...]
    """In the order in which they were told; at least one."""

    @property
    def point_count(self) -> int:
        """Points of all of them."""
        return sum(event.point_count for event in self.events)


class _Unusual(Exception):
    """Something that `EventBatch` is to look at."""


def read(body: bytes, experiment_id: str) -> PointBatch | None:
    """A batch of metric points.

    Args:
        body: JSON, of anybody.
        experiment_id: Whose events they may be.

    Returns:
        The batch; None if it isn't one of points alone, if anything in it is to be refused, if it is written in another
        way than `EventBatch` writes it, or if it has more than `MOST_EVENTS`.
    """
    if body.count(b'"payload"') > MOST_EVENTS:
        return None
    try:
        document = from_json(body)
        told = _packed([event["payload"] for event in document["events"]])
        batch = EventBatch.model_validate(document)
    except (_Unusual, ValidationError, ValueError, TypeError, KeyError, IndexError, OverflowError):
        return None
    if batch.experiment_id != experiment_id or not told:
        return None
    if any(refusal(event, experiment_id) is not None for event in batch.events):
        return None
    if len({identity(event) for event in batch.events}) < len(told):
        return None
    return PointBatch(
        experiment_id,
        tuple(
            [
                PointEvent(event, count, block)
                for event, (count, block) in zip(batch.events, told, strict=True)
            ]
        ),
    )


def identity(event: Event) -> tuple[str, int, str, int]:
    """What an event is known by."""
    return event.subject_id, event.attempt, event.source, event.seq


def _packed(payloads: Sequence[dict[str, Any]]) -> list[tuple[int, Block | None]]:
    """Takes the payloads' points out of them, and leaves none in their place.

    Returns:
        How many each had, and all of them.

    Raises:
        _Unusual, TypeError, KeyError: Not all of it is what it usually is.
    """
    points: list[dict[str, Any]] = []
    ends = []
    for payload in payloads:
        own, payload["points"] = payload["points"], ()
        if payload["kind"] != "metrics" or type(own) is not list:
            raise _Unusual
        points += own
        ends.append(len(points))
    # Of all events at once: most have few points. Whatever isn't an object has no such keys.
    steps = [point["step"] for point in points]
    names = [point["name"] for point in points]
    values = _floats([point["value"] for point in points])
    if not set(map(type, steps)) <= {int} or not all(map(_is_name, set(names))):
        raise _Unusual
    if steps and (min(steps) < -LARGEST or max(steps) > LARGEST):
        raise _Unusual
    energies = seconds = None
    more = sum(map(len, points)) - 3 * len(points)
    if more:
        if more != sum([key in point for point in points for key in _KNOWN]):
            raise _Unusual
        energies, seconds = [_known(points, key) for key in _KNOWN]
    return [
        (
            end - begin,
            pack_columns(
                steps[begin:end],
                names[begin:end],
                values[begin:end],
                energies and energies[begin:end],
                seconds and seconds[begin:end],
            )
            if end > begin
            else None,
        )
        for begin, end in itertools.pairwise([0, *ends])
    ]


def _is_name(name: object) -> bool:
    return type(name) is str and _NAME.fullmatch(name) is not None


def _known(points: Sequence[Mapping[str, object]], key: str) -> Sequence[float | None] | None:
    figures = [point.get(key) for point in points]
    kinds = set(map(type, figures))
    if kinds <= {NoneType}:
        return None
    if NoneType not in kinds:
        return _floats(figures)
    return [None if figure is None else _floats((figure,))[0] for figure in figures]


def _floats(figures: Sequence[Any]) -> Sequence[float]:
    if set(map(type, figures)) <= {float}:
        return figures
    return [figure if type(figure) is float else _float(figure) for figure in figures]


def _float(figure: object) -> float:
    if type(figure) is int and -_EXACT <= figure <= _EXACT:
        return float(figure)
    if type(figure) is str and figure in _STRANGE:
        return _STRANGE[figure]
    raise _Unusual
