"""What was measured along a run, metric by metric; and the experiment's log."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from phantom_core.protocol import Carried, RunFinished
from services.database import Database
from services.errors import NotFound
from services.tables import Attempt, Event, Experiment, MetricBlock, Run
from services.views import EventView, MetricHistory

DEFAULT_POINTS = 2_000
"""Points per series unless asked otherwise."""
MOST_POINTS = 20_000
"""Points per series at most."""
MOST_EVENTS = 1_000
"""Log entries in one answer."""


def metric_history(
    db: Database,
    run_id: str,
    *,
    names: Sequence[str] = (),
    attempt: int | None = None,
    max_points: int | None = None,
) -> MetricHistory:
    """Metrics of one run, in order of step; a start that went on from an earlier one has that one's up to there.

    Args:
        db: The database.
        run_id: Which run.
        names: Only these metrics; empty for all.
        attempt: Which start of it; None for the last.
        max_points: Points per metric at most: every n-th is taken, first and last always; None takes all.

    Raises:
        NotFound: There is no such run.
    """
    # Not at the top: it brings NumPy, which a service needs at the first history, not to start.
    from services.metric_series import series_of

    with db.read() as session:
        run = _run(session, run_id)
        number = run.attempt if attempt is None else attempt
        carried = _carried(session, run, number)
        statement = (
            select(MetricBlock.attempt, MetricBlock.first_step, MetricBlock.points)
            .where(MetricBlock.run_key == run.key)
            .where(MetricBlock.attempt.in_({number, *(each.attempt for each in carried)}))
            .order_by(MetricBlock.attempt, MetricBlock.seq, MetricBlock.source)
        )
        # The driver's own tuples: rows of the ORM, or of the layer below, double the time of a long history.
        cursor = session.connection().execute(statement).cursor
        assert cursor is not None, "a SELECT has one"
        rows = cursor.fetchall()
    return MetricHistory(
        run_id=run_id, attempt=number, series=series_of(rows, number, carried, names, max_points)
    )


def events_after(
    db: Database, experiment_id: str, *, after: int = 0, limit: int = MOST_EVENTS
) -> tuple[EventView, ...]:
    """The experiment's log, in the order in which it was written.

    Args:
        db: The database.
        experiment_id: Which.
        after: Key of the last entry seen; 0 begins at the start.
        limit: Most entries.

    Raises:
        NotFound: There is no such experiment.
    """
    with db.read() as session:
        if session.get(Experiment, experiment_id) is None:
            raise NotFound("experiment", experiment_id)
        rows = session.scalars(
            select(Event)
            .where(Event.experiment_id == experiment_id, Event.key > after)
            .order_by(Event.key)
            .limit(min(limit, MOST_EVENTS))
        )
        return tuple(
            EventView(**{name: getattr(row, name) for name in EventView.model_fields}) for row in rows
        )


def _run(session: Session, run_id: str) -> Run:
    run = session.scalars(select(Run).where(Run.id == run_id)).one_or_none()
    if run is None:
        raise NotFound("run", run_id)
    return run


def _carried(session: Session, run: Run, number: int) -> tuple[Carried, ...]:
    """What an attempt had gone on from, the earliest first."""
    attempt = session.get(Attempt, (run.key, number))
    return RunFinished.model_validate(attempt.finish).carried if attempt and attempt.finish else ()
