"""Batches of metric points into their tables: any number in one transaction, a statement for each table.

For points of runs under way, whose job's key is good: they change nothing but their run's history. What a batch says of
anything else, or of anything that is locked just now, is left to `ingest`, which looks at one batch at a time.
On PostgreSQL all of it is one statement, and so one way to the server and back.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from services.database import Cursor, Database
from services.point_batches import PointBatch, PointEvent, identity
from services.states import ExperimentState


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch of points and who sent it."""

    key_id: str
    """Public part of the job's key."""
    batch: PointBatch
    """What it sent."""


def store(db: Database, sent: Sequence[Sent]) -> list[int | None]:
    """Writes batches, all or none of those that it writes.

    Args:
        db: The database.
        sent: What to write.

    Returns:
        For each, how many of its events were new; None if it was left out, and nothing of it is written: its key isn't
        good any more, it has an event that another in this list has, one of its runs isn't under way in an attempt
        that counts, or its experiment has ended, is about to, or is locked.

    Raises:
        DatabaseUnavailable: The database can't be reached, or stayed locked.
    """
    chosen = _without_repeats(sent)
    accepted = _on_sqlite(db, chosen) if db.is_sqlite else _on_postgresql(db, chosen)
    return [accepted.get(number) for number in range(len(sent))]


def _without_repeats(sent: Sequence[Sent]) -> dict[int, Sent]:
    """Batches by their number, without those that have an event of an earlier one."""
    seen: set[tuple[str, int, str, int]] = set()
    chosen = {}
    for number, each in enumerate(sent):
        told = {identity(event.event) for event in each.batch.events}
        if seen.isdisjoint(told):
            chosen[number] = each
        seen |= told
    return chosen


_Under_way = dict[tuple[str, str, int], int]
"""By the key's id, the run's and the attempt's number: the run's key."""


def _on_sqlite(db: Database, sent: dict[int, Sent]) -> dict[int, int]:
    with db.cursor() as cursor:
        moment = _instant(datetime.now(UTC))
        under_way = _under_way(cursor, sent.values(), moment)
        taken = {
            number: each
            for number, each in sent.items()
            if all(_about(each, told) in under_way for told in each.batch.events)
        }
        if not taken:
            return {}
        events = [(each, told) for each in taken.values() for told in each.batch.events]
        new = _insert_events(cursor, events, moment)
        blocks = [
            (under_way[_about(each, told)], *_block_of(told))
            for each, told in events
            if told.block is not None and identity(told.event) in new
        ]
        if blocks:
            _insert_blocks(cursor, blocks)
        _note_news(cursor, [each for each in events if identity(each[1].event) in new], moment)
    return {
        number: sum(identity(told.event) in new for told in each.batch.events)
        for number, each in taken.items()
    }


def _about(sent: Sent, told: PointEvent) -> tuple[str, str, int]:
    return sent.key_id, told.event.subject_id, told.event.attempt


def _block_of(told: PointEvent) -> tuple[int, int, str, int, int, bytes]:
    event, block = told.event, told.block
    assert block is not None, "only events with points have a block"
    return event.attempt, event.seq, event.source, block.first_step, told.point_count, block.packed


def _under_way(cursor: Cursor, sent: Iterable[Sent], moment: str) -> _Under_way:
    keys: set[str] = set()
    runs: set[str] = set()
    for each in sent:
        keys.add(each.key_id)
        runs.update(told.event.subject_id for told in each.batch.events)
    cursor.execute(_SQLITE_UNDER_WAY, (json.dumps(list(runs)), json.dumps(list(keys)), moment))
    return {(key, run, attempt): run_key for key, run, attempt, run_key in cursor.fetchall()}


def _insert_events(
    cursor: Cursor, events: Sequence[tuple[Sent, PointEvent]], moment: str
) -> set[tuple[str, int, str, int]]:
    """Adds events to the log; gives those that are new."""
    values: list[object] = []
    for each, told in events:
        event = told.event
        values += (each.batch.experiment_id, *identity(event), _instant(event.at), moment)
    rows = ", ".join(["(?, ?, ?, ?, ?, 'metrics', ?, ?)"] * len(events))
    cursor.execute(
        f"INSERT INTO events ({_EVENT}) VALUES {rows} "  # noqa: S608 - names of this file
        "ON CONFLICT DO NOTHING RETURNING subject_id, attempt, source, seq",
        values,
    )
    return set(cursor.fetchall())


def _insert_blocks(cursor: Cursor, blocks: Sequence[tuple[object, ...]]) -> None:
    # One statement: between two of them SQLite's driver would give Python's lock away and wait for it again.
    rows = ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * len(blocks))
    cursor.execute(
        f"INSERT INTO metric_blocks ({_BLOCK}) VALUES {rows} ON CONFLICT DO NOTHING",  # noqa: S608
        [value for block in blocks for value in block],
    )


def _note_news(cursor: Cursor, new: Sequence[tuple[Sent, PointEvent]], moment: str) -> None:
    heard = {each.batch.experiment_id for each, told in new if told.is_of_ranks}
    changed = {each.batch.experiment_id for each, _ in new}
    if heard:
        cursor.execute(_SQLITE_HEARD, (moment, json.dumps(list(heard))))
    if changed - heard:
        cursor.execute(_SQLITE_CHANGED, (json.dumps(list(changed - heard)),))


def _instant(moment: datetime) -> str:
    """SQLAlchemy's notation of an instant in SQLite."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")


def _on_postgresql(db: Database, sent: dict[int, Sent]) -> dict[int, int]:
    numbers: dict[int, int] = {}
    rows: list[dict[str, object]] = []
    for number, each in sent.items():
        for told in each.batch.events:
            numbers[len(rows)] = number
            event, block = told.event, told.block
            rows.append(
                {
                    "number": len(rows),
                    "batch": number,
                    "batch_events": len(each.batch.events),
                    "key_id": each.key_id,
                    "experiment_id": each.batch.experiment_id,
                    "subject_id": event.subject_id,
                    "attempt": event.attempt,
                    "source": event.source,
                    "seq": event.seq,
                    "at": event.at.isoformat(),
                    "is_heard": told.is_of_ranks,
                    "first_step": None if block is None else block.first_step,
                    "point_count": told.point_count,
                    "points": None if block is None else block.packed.hex(),
                }
            )
    accepted: dict[int, int] = {}
    for found in db.execute_alone(_POSTGRESQL, (json.dumps(rows),)):
        # A batch that is written is told as a number below 0, each of its events that is new as one from 0.
        if found < 0:
            accepted.setdefault(-1 - found, 0)
        else:
            accepted[numbers[found]] = accepted.get(numbers[found], 0) + 1
    return accepted


_EVENT = "experiment_id, subject_id, attempt, source, seq, kind, at, received_at"
_BLOCK = "run_key, attempt, seq, source, first_step, point_count, points"
_TERMINAL = ", ".join(f"'{state.value}'" for state in ExperimentState if state.is_terminal)
# As in `subjects` and `ingest_lock`: neither superseded, nor to be compared, nor to be settled.
_COUNTS = f"""
    attempts.attempt = runs.attempt AND attempts.experiment_attempt = experiments.attempt
    AND (experiments.finished_at IS NULL OR experiments.compared_at IS NOT NULL)
    AND (experiments.reported_outcome IS NULL OR experiments.state IN ({_TERMINAL}))
"""
_SQLITE_UNDER_WAY = f"""
SELECT api_keys.id, runs.id, attempts.attempt, runs.key
FROM runs
JOIN experiments ON experiments.id = runs.experiment_id
JOIN attempts ON attempts.run_key = runs.key
JOIN api_keys ON api_keys.experiment_id = experiments.id
WHERE runs.id IN (SELECT value FROM json_each(?))
    AND api_keys.id IN (SELECT value FROM json_each(?))
    AND api_keys.revoked_at IS NULL AND (api_keys.expires_at IS NULL OR api_keys.expires_at > ?)
    AND {_COUNTS}
"""  # noqa: S608 - names of this file
_SQLITE_CHANGED = "UPDATE experiments SET version = version + 1 WHERE id IN (SELECT value FROM json_each(?))"
_SQLITE_HEARD = (
    "UPDATE experiments SET version = version + 1, last_event_at = ? "
    "WHERE id IN (SELECT value FROM json_each(?))"
)
# What is locked by another is left out, so that two groups that hold some of the same never wait for each other, and
# nobody waits for an experiment that isn't his. `IS TRUE` keeps the planner, who knows nothing of how many rows there
# are, from comparing each with each.
_POSTGRESQL = f"""
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%s::json) AS given(number int, batch int, batch_events int, key_id text,
        experiment_id text, subject_id text, attempt int, source text, seq bigint, at timestamptz, is_heard bool,
        first_step bigint, point_count int, points text)
), locked AS MATERIALIZED (
    SELECT id, state, attempt, reported_outcome, finished_at, compared_at
    FROM experiments WHERE id IN (SELECT experiment_id FROM given)
    FOR UPDATE SKIP LOCKED
), known AS MATERIALIZED (
    SELECT given.*, runs.key AS run_key
    FROM given
    JOIN locked AS experiments ON experiments.id = given.experiment_id
    JOIN api_keys ON api_keys.id = given.key_id AND api_keys.experiment_id = given.experiment_id
        AND api_keys.revoked_at IS NULL
        AND (api_keys.expires_at IS NULL OR api_keys.expires_at > clock_timestamp())
    JOIN runs ON runs.id = given.subject_id AND runs.experiment_id = given.experiment_id
    JOIN attempts ON attempts.run_key = runs.key AND attempts.attempt = given.attempt
    WHERE {_COUNTS}
), taken AS MATERIALIZED (
    SELECT batch FROM known GROUP BY batch HAVING count(*) = min(batch_events)
), event AS (
    INSERT INTO events ({_EVENT})
    SELECT experiment_id, subject_id, attempt, source, seq, 'metrics', at, clock_timestamp()
    FROM known JOIN taken USING (batch) ORDER BY number
    ON CONFLICT DO NOTHING
    RETURNING subject_id, attempt, source, seq
), new AS MATERIALIZED (
    SELECT * FROM known
    WHERE ((subject_id, attempt, source, seq) IN (
        SELECT subject_id::text, attempt, source::text, seq FROM event
    )) IS TRUE
), block AS (
    INSERT INTO metric_blocks ({_BLOCK})
    SELECT run_key, attempt, seq, source, first_step, point_count, decode(points, 'hex')
    FROM new WHERE point_count > 0 ORDER BY number
    ON CONFLICT DO NOTHING
), news AS (
    UPDATE experiments SET version = experiments.version + 1,
        last_event_at = CASE WHEN heard.heard THEN clock_timestamp() ELSE experiments.last_event_at END
    FROM (SELECT experiment_id, bool_or(is_heard) AS heard FROM new GROUP BY experiment_id) AS heard
    WHERE experiments.id = heard.experiment_id
)
SELECT number FROM new UNION ALL SELECT -1 - batch FROM taken
"""  # noqa: S608 - names of this file
