"""What ingest must know of an experiment for every batch, locked, and what every batch changes in it.

Most batches bring figures of a run under way. For them a few columns are enough, and reading the whole row by way of
the ORM, and writing it back, would cost several times as much as their figures.
"""

from dataclasses import dataclass
from datetime import datetime
from functools import cache

from sqlalchemy import Select, Update, bindparam, func, select, update
from sqlalchemy.orm import Session

from services.states import ExperimentState
from services.tables import Experiment, table


@dataclass(frozen=True)
class Locked:
    """Where an experiment stands; true until the transaction ends."""

    id: str
    """The experiment."""
    attempt: int
    """Its attempt that counts."""
    is_to_be_compared: bool
    """Whether it has ended, and its comparison is to be worked out (anew)."""
    is_to_be_settled: bool
    """Whether its job has said its last word, and the experiment has not ended."""


def lock(session: Session, experiment_id: str) -> Locked | None:
    """Locks an experiment until the transaction ends; None if there is none.

    Like `moves.lock_experiment`: on SQLite the whole database is locked already.
    """
    row = session.connection().execute(_columns(), {"experiment_id": experiment_id}).one_or_none()
    if row is None:
        return None
    state, attempt, reported, finished_at, compared_at = row
    return Locked(
        id=experiment_id,
        attempt=attempt,
        is_to_be_compared=finished_at is not None and compared_at is None,
        is_to_be_settled=reported is not None and not ExperimentState(state).is_terminal,
    )


def note_news(session: Session, experiment_id: str, heard_at: datetime | None) -> None:
    """Raises the experiment's version, before anything of it is read by way of the ORM.

    Args:
        session: A session that holds its lock.
        experiment_id: Which.
        heard_at: When its ranks were heard; None if they were not.
    """
    session.connection().execute(_news(), {"experiment": experiment_id, "heard_at": heard_at})


# Both are made once: making a statement costs as much as running it.
@cache
def _columns() -> Select[str, int, str | None, datetime | None, datetime | None]:
    columns = table(Experiment).c
    return (
        select(
            columns.state,
            columns.attempt,
            columns.reported_outcome,
            columns.finished_at,
            columns.compared_at,
        )
        .where(columns.id == bindparam("experiment_id"))
        .with_for_update()
    )


@cache
def _news() -> Update:
    columns = table(Experiment).c
    heard_at = bindparam("heard_at", type_=columns.last_event_at.type)
    return (
        update(table(Experiment))
        .where(columns.id == bindparam("experiment"))
        .values(version=columns.version + 1, last_event_at=func.coalesce(heard_at, columns.last_event_at))
    )
