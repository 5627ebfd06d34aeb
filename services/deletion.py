"""Deletion of ended experiments, and of power samples that are too old: in small steps, so nobody waits.

The wish is a column, so a process that dies half-way leaves work for the next one, and never a half-deleted
experiment that nobody knows of.
"""

from datetime import timedelta
from functools import partial

from sqlalchemy import CursorResult, delete, or_, select
from sqlalchemy.orm import InstrumentedAttribute

from services.columns import Base
from services.database import Database, now
from services.mishaps import Mishaps
from services.states import TERMINAL_STATES, ExperimentState
from services.tables import (
    BoardStateBlock,
    Device,
    Event,
    Experiment,
    MetricBlock,
    PowerSample,
    Run,
    Window,
)

ROWS_AT_ONCE = 5_000
"""Rows deleted in one transaction."""


def delete_if_asked(db: Database, experiment_id: str) -> bool:
    """Deletes an experiment with all that belongs to it, if somebody asked and it has ended.

    Returns:
        Whether it is gone.
    """
    with db.read() as session:
        experiment = session.get(Experiment, experiment_id)
        if experiment is None:
            return True
        ended = ExperimentState(experiment.state).is_terminal
        if experiment.delete_requested_at is None or not ended:
            return False
        devices = session.scalars(select(Device.key).where(Device.experiment_id == experiment_id)).all()
        runs = session.scalars(select(Run.key).where(Run.experiment_id == experiment_id)).all()
    for device in devices:
        _delete_in_steps(db, PowerSample, PowerSample.key, PowerSample.device_key, device)
        _delete_in_steps(db, BoardStateBlock, BoardStateBlock.key, BoardStateBlock.device_key, device)
    for run in runs:
        with db.write() as session:
            session.execute(delete(MetricBlock).where(MetricBlock.run_key == run))
        _delete_in_steps(db, Window, Window.key, Window.run_key, run)
    _delete_in_steps(db, Event, Event.key, Event.experiment_id, experiment_id)
    with db.write() as session:
        session.execute(delete(Experiment).where(Experiment.id == experiment_id))
    return True


def delete_asked(db: Database, mishaps: Mishaps) -> int:
    """Deletes the experiments that a process which died has left half-deleted, or not yet.

    Args:
        db: The database.
        mishaps: Keeps what goes wrong with one from the others.

    Returns:
        How many went.
    """
    with db.read() as session:
        asked = session.scalars(
            select(Experiment.id).where(
                Experiment.delete_requested_at.is_not(None), Experiment.state.in_(TERMINAL_STATES)
            )
        ).all()
    return sum(
        mishaps.attempt(f"deleting {identifier}", partial(delete_if_asked, db, identifier), False)
        for identifier in asked
    )


def prune_power(db: Database, days: float) -> int:
    """Deletes power samples and board states of experiments that ended long ago; summaries stay.

    Args:
        db: The database.
        days: Age from which on, in days since the experiment's end.

    Returns:
        Rows that went.
    """
    with db.read() as session:
        before = now(session) - timedelta(days=days)
        devices = session.scalars(
            select(Device.key)
            .join(Experiment, Experiment.id == Device.experiment_id)
            .where(Experiment.finished_at < before)
            .where(
                or_(
                    select(PowerSample.key).where(PowerSample.device_key == Device.key).exists(),
                    select(BoardStateBlock.key).where(BoardStateBlock.device_key == Device.key).exists(),
                )
            )
        ).all()
    return sum(
        _delete_in_steps(db, PowerSample, PowerSample.key, PowerSample.device_key, device)
        + _delete_in_steps(db, BoardStateBlock, BoardStateBlock.key, BoardStateBlock.device_key, device)
        for device in devices
    )


def _delete_in_steps(
    db: Database,
    table: type[Base],
    key: InstrumentedAttribute[int],
    owner: InstrumentedAttribute[int] | InstrumentedAttribute[int | None] | InstrumentedAttribute[str],
    owner_key: int | str,
) -> int:
    gone = 0
    while True:
        with db.write() as session:
            some = select(key).where(owner == owner_key).limit(ROWS_AT_ONCE).scalar_subquery()
            result = session.execute(delete(table).where(key.in_(some)))
            assert isinstance(result, CursorResult)
            gone += result.rowcount
            if result.rowcount < ROWS_AT_ONCE:
                return gone
