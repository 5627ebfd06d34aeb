"""Batches of points read the short way: exactly as `EventBatch` reads them, or not at all."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from phantom_core.protocol import Alive, EventBatch, MetricPoint, Metrics
from services.event_limits import refusal
from services.metric_packing import pack
from services.point_batches import MOST_EVENTS, PointBatch, read
from tests.services.test_metric_blocks import points_strategy

EXPERIMENT = "exp-1"

events_strategy = st.lists(
    st.tuples(
        st.sampled_from([f"{EXPERIMENT}-r1", f"{EXPERIMENT}-r2"]),
        st.integers(1, 3),
        st.sampled_from(["rank-0", "sampler-node"]),
        st.datetimes(timezones=st.timezones()).filter(lambda at: 1972 < at.year < 8_000),
        points_strategy(6),
    ),
    min_size=1,
    max_size=6,
)


@st.composite
def batches(draw: st.DrawFn) -> EventBatch:
    """As jobs send them."""
    events = [
        {
            "subject_id": subject,
            "attempt": attempt,
            "source": source,
            "seq": seq,
            "at": at,
            "payload": Metrics(points=tuple(points)),
        }
        for seq, (subject, attempt, source, at, points) in enumerate(draw(events_strategy))
    ]
    return EventBatch.model_validate({"experiment_id": EXPERIMENT, "events": events})


def holds(read_batch: PointBatch, batch: EventBatch) -> None:
    """That a batch is the other, to the bit."""
    assert read_batch.experiment_id == batch.experiment_id
    for found, event in zip(read_batch.events, batch.events, strict=True):
        assert isinstance(event.payload, Metrics)
        points = event.payload.points
        assert found.event == event.model_copy(update={"payload": Metrics(points=())})
        assert found.point_count == len(points)
        assert found.block == (pack(points) if points else None)


def one_nan(point: MetricPoint) -> MetricPoint:
    """A point whose value, if it is a NaN, is the only one that JSON knows."""
    return point.model_copy(update={"value": math.nan}) if math.isnan(point.value) else point


@given(batches())
def test_what_jobs_send_is_read_as_it_was_sent(batch: EventBatch) -> None:
    body = batch.model_dump_json().encode()
    found = read(body, EXPERIMENT)
    assert found is not None
    holds(found, EventBatch.model_validate_json(body))
    told = [event.payload.points for event in batch.events if isinstance(event.payload, Metrics)]
    packed = [pack([one_nan(point) for point in points]) if points else None for points in told]
    assert [event.block for event in found.events] == packed
    assert found.point_count == sum(event.point_count for event in found.events)


odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**400]),
    st.floats(),
    st.sampled_from(
        ["NaN", "Infinity", "-Infinity", "nan", "1", "1.5", "", "a", "\x00", "metrics", "alive", "Ä"]
    ),
    st.just([]),
    st.just({}),
)
"""What may stand in a document in place of anything."""


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Ways to all values of a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


def changed(document: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> None:
    for key in path[:-1]:
        document = document[key]
    change(document, path[-1])


@given(batches(), st.data())
def test_what_nobody_would_send_is_read_as_events_are_or_left_to_them(
    batch: EventBatch, data: st.DataObject
) -> None:
    document = json.loads(batch.model_dump_json())
    for _ in range(data.draw(st.integers(1, 3), label="changes")):
        path = data.draw(st.sampled_from(places(document)[1:]), label="place")
        kind = data.draw(st.sampled_from(["replace", "remove", "add"]), label="change")
        value = data.draw(odd, label="value")

        def change(inside: Any, key: Any, kind: str = kind, value: object = value) -> None:
            if kind == "replace":
                inside[key] = value
            elif kind == "remove":
                del inside[key]
            elif isinstance(inside, dict):
                inside["more"] = value
            else:
                inside.append(value)

        changed(document, path, change)
        if not places(document)[1:]:
            return
    body = json.dumps(document).encode()
    found = read(body, EXPERIMENT)
    if found is None:
        return
    expected = EventBatch.model_validate_json(body)
    assert not any(refusal(event, EXPERIMENT) for event in expected.events)
    holds(found, expected)


def document(**changes: object) -> dict[str, Any]:
    """One event of one point."""
    point = {"step": 1, "name": "loss", "value": 0.5, "energy_mj": None, "training_s": 2.0}
    event = {
        "subject_id": f"{EXPERIMENT}-r1",
        "attempt": 1,
        "source": "rank-0",
        "seq": 0,
        "at": "2026-01-01T00:00:00Z",
        "payload": {"kind": "metrics", "points": [point]},
    }
    for inside in (point, event):
        inside.update({key: value for key, value in changes.items() if key in inside})
    point.update({key: value for key, value in changes.items() if key == "unknown"})
    return {"experiment_id": EXPERIMENT, "events": [event]}


def test_the_plain_document_is_read() -> None:
    assert read(json.dumps(document()).encode(), EXPERIMENT) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"step": True},
        {"step": "1"},
        {"step": 1.0},
        {"step": 2**63},
        {"name": "Loss"},
        {"name": "loss\n"},
        {"name": "a" * 65},
        {"value": "0.5"},
        {"value": None},
        {"value": 2**53 + 1},
        {"energy_mj": []},
        {"unknown": 1},
        {"subject_id": EXPERIMENT},
        {"subject_id": "exp-2-r1"},
        {"source": "service"},
        {"attempt": 40_000},
        {"seq": 2**63},
        {"at": "2026-01-01T00:00:00"},
        {"at": "9500-01-01T00:00:00Z"},
        {"payload": {"kind": "alive", "ranks": 2}},
    ],
)
def test_what_is_unusual_is_left_to_events(changes: dict[str, object]) -> None:
    made = document(**changes)
    assert read(json.dumps(made).encode(), EXPERIMENT) is None


def test_batches_with_other_events_or_of_other_experiments_are_left_to_events() -> None:
    batch = EventBatch.model_validate(document())
    assert read(batch.model_dump_json().encode(), "exp-2") is None
    beat = batch.events[0].model_copy(update={"payload": Alive(ranks=2), "seq": 1})
    mixed = batch.model_copy(update={"events": (*batch.events, beat)})
    assert read(mixed.model_dump_json().encode(), EXPERIMENT) is None
    twice = batch.model_copy(update={"events": batch.events * 2})
    assert read(twice.model_dump_json().encode(), EXPERIMENT) is None
    none = batch.model_copy(update={"events": ()})
    assert read(none.model_dump_json().encode(), EXPERIMENT) is None


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"events": {"a": 1}}', b"[" * 10_000, b"\xff"])
def test_what_is_no_batch_is_left_to_events(body: bytes) -> None:
    assert read(body, EXPERIMENT) is None
    with pytest.raises(ValidationError):
        EventBatch.model_validate_json(body)


def test_more_events_than_others_would_wait_for_are_left_to_events() -> None:
    made = document()
    made["events"] = [made["events"][0] | {"seq": number} for number in range(MOST_EVENTS + 1)]
    assert read(json.dumps(made).encode(), EXPERIMENT) is None
    del made["events"][-1]
    assert read(json.dumps(made).encode(), EXPERIMENT) is not None


def test_bare_words_that_are_no_json_are_floats_as_everywhere() -> None:
    body = json.dumps(document(value=math.nan)).encode()
    assert b"NaN" in body
    found = read(body, EXPERIMENT)
    assert found is not None
    holds(found, EventBatch.model_validate_json(body))
