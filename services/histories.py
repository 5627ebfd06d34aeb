"""What was measured along a run, metric by metric; and the experiment's log."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from services.database import Database
from services.errors import NotFound, QueryError
from services.power_history import power_history
from services.tables import Event, Experiment, Metric, Run
from services.views import EventView, MetricHistory, MetricSeries

__all__ = ["events_after", "metric_history", "power_history"]

MOST_EVENTS = 1_000
"""Log entries in one answer."""


class _Point(NamedTuple):
    name: str
    step: int
    value: float | None
    non_finite: str | None
    energy_mj: float | None
    training_s: float | None


def metric_history(
    db: Database,
    run_id: str,
    *,
    names: Sequence[str] = (),
    attempt: int | None = None,
    max_points: int | None = None,
) -> MetricHistory:
    """Metrics of one run, in order of step.

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
            .where(Metric.run_key == run.key, Metric.attempt == number)
            .order_by(Metric.name, Metric.step, Metric.seq)
        )
        if names:
            statement = statement.where(Metric.name.in_(names))
        points = [_Point(*row) for row in session.execute(statement)]
    by_name: dict[str, list[_Point]] = {}
    for point in points:
        by_name.setdefault(point.name, []).append(point)
    return MetricHistory(
        run_id=run_id,
        attempt=number,
        series=tuple(_series(name, _thinned(found, max_points)) for name, found in by_name.items()),
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


def _thinned(points: Sequence[_Point], most: int | None) -> Sequence[_Point]:
    if most is None or len(points) <= most:
        return points
    if most < 2:
        raise QueryError(f"max_points = {most}; it must be 2 or more, for the first and the last point")
    last = len(points) - 1
    return [points[round(number * last / (most - 1))] for number in range(most)]


def _series(name: str, points: Sequence[_Point]) -> MetricSeries:
    return MetricSeries(
        name=name,
        step=tuple(point.step for point in points),
        value=tuple(point.value for point in points),
        non_finite={
            index: point.non_finite for index, point in enumerate(points) if point.non_finite is not None
        },
        energy_mj=tuple(point.energy_mj for point in points),
        training_s=tuple(point.training_s for point in points),
    )
