"""What was measured along a run, metric by metric; and the experiment's log."""

import itertools
from collections.abc import Sequence
from operator import itemgetter

from sqlalchemy import ColumnElement, and_, or_, select
from sqlalchemy.orm import Session

from phantom_core.protocol import RunFinished
from services.database import Database
from services.errors import NotFound, QueryError
from services.tables import Attempt, Event, Experiment, Metric, Run
from services.views import EventView, MetricHistory, MetricSeries

DEFAULT_POINTS = 2_000
"""Points per series unless asked otherwise."""
MOST_POINTS = 20_000
"""Points per series at most."""
MOST_EVENTS = 1_000
"""Log entries in one answer."""


_Row = tuple[str, int, float | None, str | None, float | None, float | None]
"""Name, step, value, its name if it isn't finite, energy in millijoules, seconds."""


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
    with db.read() as session:
        run = _run(session, run_id)
        number = run.attempt if attempt is None else attempt
        statement = (
            select(
                Metric.name,
                Metric.step,
                Metric.value,
                Metric.non_finite,
                Metric.energy_mj,
                Metric.training_s,
            )
            .where(Metric.run_key == run.key, _of_attempt(session, run, number))
            .order_by(Metric.name, Metric.step, Metric.seq)
        )
        if names:
            statement = statement.where(Metric.name.in_(names))
        # The driver's own tuples: rows of the ORM, or of the layer below, double the time of a long history.
        cursor = session.connection().execute(statement).cursor
        assert cursor is not None, "a SELECT has one"
        rows: Sequence[_Row] = cursor.fetchall()
    return MetricHistory(
        run_id=run_id,
        attempt=number,
        series=tuple(
            _series(name, _thinned(list(found), max_points))
            for name, found in itertools.groupby(rows, key=itemgetter(0))
        ),
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


def _of_attempt(session: Session, run: Run, number: int) -> ColumnElement[bool]:
    """Points of an attempt, and of those before it that it had gone on from."""
    attempt = session.get(Attempt, (run.key, number))
    finish = attempt.finish if attempt is not None else None
    parts, first = [], -1
    for each in RunFinished.model_validate(finish).carried if finish else ():
        parts.append(and_(Metric.attempt == each.attempt, Metric.step > first, Metric.step <= each.steps))
        first = each.steps
    return or_(Metric.attempt == number, *parts)


def _thinned(rows: Sequence[_Row], most: int | None) -> Sequence[_Row]:
    if most is None or len(rows) <= most:
        return rows
    if most < 2:
        raise QueryError(f"max_points = {most}; it must be 2 or more, for the first and the last point")
    last = len(rows) - 1
    return [rows[round(number * last / (most - 1))] for number in range(most)]


def _series(name: str, rows: Sequence[_Row]) -> MetricSeries:
    # The columns' types are the database's promise; checking 16,000 numbers again would take half of the time.
    # Column by column, since transposing with zip makes an iterator for every row.
    return MetricSeries.model_construct(
        name=name,
        step=tuple([row[1] for row in rows]),
        value=tuple([row[2] for row in rows]),
        non_finite={index: row[3] for index, row in enumerate(rows) if row[3] is not None},
        energy_mj=tuple([row[4] for row in rows]),
        training_s=tuple([row[5] for row in rows]),
    )
