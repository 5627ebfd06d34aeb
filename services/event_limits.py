"""What an event may hold to be stored: numbers that fit their columns, text that a database takes and has no secret."""

import json
import math
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from phantom_core.protocol import (
    BoardStates,
    DeviceInfo,
    Event,
    ExperimentStarted,
    Metrics,
    PowerSamples,
    RunFinished,
    RunStarted,
    Window,
)
from services.instants import LONGEST_S, is_instant, is_span
from services.moves import SERVICE
from services.scrubbing import excerpt
from services.texts import storable

MOST_ATTEMPTS = 32_767
LARGEST = 2**63 - 1
MOST_TEXT = 4_000
"""Characters of a message or reason that are kept."""
MOST_NAME = 255
"""Characters of a host's or device's name that are kept."""


def refusal(event: Event, experiment_id: str) -> str | None:
    """Why an event can't be stored at all; None if it can."""
    if event.source == SERVICE or event.source.startswith(f"{SERVICE}."):
        return f"the source `{event.source}` is the service's own"
    if event.subject_id != experiment_id and not event.subject_id.startswith(f"{experiment_id}-"):
        return "its subject belongs to another experiment"
    if "\x00" in event.subject_id:
        return "its subject is no id"
    if event.attempt > MOST_ATTEMPTS or event.seq > LARGEST:
        return "its attempt or seq is too large"
    if any(abs(number) > LARGEST for number in _integers(event)):
        return "a whole number in it is too large"
    if not all(map(is_instant, _moments(event))):
        return "a time in it is out of range"
    if not all(map(is_span, _spans(event))):
        return f"a duration or monotonic time in it is no number of seconds up to {LONGEST_S:g}"
    match event.payload:
        case Metrics() if event.subject_id == experiment_id:
            return "metrics belong to a run"
        case Window() as window:
            if window.duration_s < 0:
                return "its duration is negative"
            if min(window.index, window.steps, window.samples) < 0 or window.index >= 2**31:
                return "its index, steps or samples are out of range"
        case BoardStates() as board:
            if not board.states:
                return "it holds no states"
    return None


def text(value: str | None, most: int = MOST_TEXT) -> str | None:
    """Text as it is kept: no NUL, which no database takes, not endless, and without what looks like a secret."""
    if value is None:
        return None
    return storable(excerpt(value, most))


def name(value: str) -> str:
    """A host's or device's name that fits its column."""
    return storable(value)[:MOST_NAME]


def number(value: float | None) -> float | None:
    """A figure; None where it isn't finite, since an energy or a power that isn't is unknown."""
    return value if value is not None and math.isfinite(value) else None


def document(event: Event) -> dict[str, Any]:
    """The payload as JSON; floats that aren't finite become the strings that the wire knows."""
    loaded: dict[str, Any] = _clean(json.loads(event.payload.model_dump_json()))
    return loaded


def _clean(value: Any) -> Any:
    match value:
        case str():
            return text(value)
        case list():
            return [_clean(item) for item in value]
        case dict():
            return {text(key): _clean(item) for key, item in value.items()}
        case _:
            return value


def _integers(event: Event) -> Iterable[int]:
    match event.payload:
        case Window() as window:
            yield from (window.index, window.steps, window.samples)
        case Metrics() as metrics:
            steps = [point.step for point in metrics.points]
            yield from (min(steps, default=0), max(steps, default=0))
        case RunStarted() as started:
            yield started.ranks
        case RunFinished() as finished:
            counts = (finished.steps, finished.samples, finished.target_step)
            sizes = (finished.parameters, finished.peak_memory_bytes)
            yield from (count for count in (*counts, *sizes) if count is not None)
        case ExperimentStarted() as started:
            yield from (rank.rank for rank in started.ranks)
            yield from (_memory(device) for device in started.devices)
        case _:
            return


def _memory(device: DeviceInfo) -> int:
    return device.memory_bytes or 0


def _moments(event: Event) -> Iterable[datetime]:
    yield event.at
    match event.payload:
        case Window() as window:
            yield window.started_at
        case PowerSamples() as samples:
            yield from samples.at
        case BoardStates() as board:
            yield from (state.at for state in board.states)
        case _:
            return


def _spans(event: Event) -> Iterable[float]:
    match event.payload:
        case Window() as window:
            yield from (window.duration_s, window.started_monotonic_s)
        case PowerSamples() as samples:
            yield from samples.monotonic_s
        case BoardStates() as board:
            yield from (state.monotonic_s for state in board.states)
        case RunFinished() as finished:
            # One that isn't finite counts as unknown, wherever it is looked at.
            known = (finished.training_s, finished.seconds_to_target)
            yield from (each for each in known if each is not None and math.isfinite(each))
        case _:
            return
