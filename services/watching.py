"""What a watcher of an experiment is told: the part of its log that people and programs wait for, in order.

The log (`tables.Event`) is written in the transactions that it tells of, and every one of them holds the experiment's
lock, so that within one experiment keys grow in the order of commits: whoever has seen one key has seen all smaller
ones, on any database and through any process. Across experiments that would not hold, so nothing here asks it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from services.database import Database
from services.errors import NotFound, QueryError
from services.states import TERMINAL_STATES
from services.tables import Event, Experiment
from services.views import Occurrence

ROUND_FINISHED = "round_finished"
"""All runs of a round have ended, so that the comparison rests on one round more (`rounds.log_finished`)."""

KINDS = (
    "state",
    "attempt",
    "cancel_requested",
    "delete_requested",
    "experiment_started",
    "run_started",
    "run_finished",
    "progress",
    ROUND_FINISHED,
)
"""What watchers are told of the log; series are read through the run instead."""

TOLD_ELSEWHERE = frozenset({"experiment_started", "run_started"})
"""Kinds whose payload is long, or says nothing: the experiment itself has it."""

PAGE = 200
"""Most occurrences that are read at once."""


@dataclass(frozen=True)
class Position:
    """How far an experiment's log reaches."""

    version: int
    """The experiment's version then: as long as it stands, nothing was added."""
    last: int
    """Id of the last occurrence; 0 if there is none."""
    end: int | None
    """Id of the one that ended the experiment; None while it hasn't ended."""


@dataclass(frozen=True)
class Known:
    """What somebody has seen of one experiment."""

    version: int
    """Its version then."""
    last: int
    """Id of the last occurrence."""


@dataclass(frozen=True)
class Change:
    """What is new about one experiment."""

    version: int | None
    """Its version now; None if it is gone."""
    occurrences: tuple[Occurrence, ...]
    """At most `PAGE`; there may be more if there are as many."""


def position(db: Database, experiment_id: str, after: int = 0) -> Position:
    """Where an experiment's log stands.

    Args:
        db: The database.
        experiment_id: Which.
        after: Id of the last occurrence that a watcher has seen; 0 for none.

    Raises:
        NotFound: There is no such experiment.
        QueryError: `after` is no occurrence of it, so what follows it can't be told without loss.
    """
    with db.read() as session:
        version = session.execute(
            select(Experiment.version).where(Experiment.id == experiment_id)
        ).scalar_one_or_none()
        if version is None:
            raise NotFound("experiment", experiment_id)
        if after and not _is_of(session, experiment_id, after):
            raise QueryError(
                f"{after} is no event of {experiment_id}; leave Last-Event-ID out to begin at its start"
            )
        last = session.execute(_told(experiment_id).with_only_columns(func.max(Event.key))).scalar_one()
        return Position(version, last or 0, _end(session, experiment_id))


def occurrences(db: Database, experiment_id: str, after: int, limit: int = PAGE) -> tuple[Occurrence, ...]:
    """What happened after an occurrence, in order; empty where nothing did, or the experiment is gone."""
    with db.read() as session:
        return _after(session, experiment_id, after, limit)


def changes(db: Database, known: Mapping[str, Known]) -> dict[str, Change]:
    """What is new about some experiments, in one look: one query if nothing is."""
    with db.read() as session:
        found = session.execute(
            select(Experiment.id, Experiment.version).where(Experiment.id.in_(list(known)))
        )
        versions: dict[str, int] = {row.id: row.version for row in found}
        changed = {}
        for identifier, seen in known.items():
            version = versions.get(identifier)
            if version is None:
                changed[identifier] = Change(None, ())
            elif version != seen.version:
                changed[identifier] = Change(version, _after(session, identifier, seen.last, PAGE))
        return changed


def _after(session: Session, experiment_id: str, after: int, limit: int) -> tuple[Occurrence, ...]:
    rows = session.scalars(_told(experiment_id).where(Event.key > after).order_by(Event.key).limit(limit))
    return tuple(_occurrence(row) for row in rows)


def _told(experiment_id: str) -> Select[Event]:
    # What bears a note has changed nothing: it came too late, or from an attempt that no longer counts.
    return select(Event).where(
        Event.experiment_id == experiment_id, Event.kind.in_(KINDS), Event.note.is_(None)
    )


def _occurrence(row: Event) -> Occurrence:
    of_run = row.subject_id != row.experiment_id
    data = {} if row.kind in TOLD_ELSEWHERE else dict(row.payload or {})
    data.pop("kind", None)
    return Occurrence(
        id=row.key,
        kind=row.kind,
        experiment_id=row.experiment_id,
        run_id=row.subject_id if of_run else None,
        attempt=row.attempt,
        at=row.at,
        is_last=row.kind == "state" and data.get("to") in TERMINAL_STATES,
        data=data,
    )


def _is_of(session: Session, experiment_id: str, key: int) -> bool:
    row = session.get(Event, key)
    return row is not None and row.experiment_id == experiment_id


def _end(session: Session, experiment_id: str) -> int | None:
    state = session.execute(select(Experiment.state).where(Experiment.id == experiment_id)).scalar_one()
    if state not in TERMINAL_STATES:
        return None
    return session.execute(
        select(func.max(Event.key)).where(Event.experiment_id == experiment_id, Event.kind == "state")
    ).scalar_one()
