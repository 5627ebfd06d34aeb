"""How the service stands, in a few figures for whoever watches over it."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, or_, select

from services import switches
from services.database import Database, now
from services.states import LEASED_STATES, ExperimentState
from services.tables import Experiment, Heartbeat


@dataclass(frozen=True)
class Census:
    """One look at the tables."""

    experiments: dict[ExperimentState, int]
    """Number of experiments by state; every state is there."""
    queued_by_priority: dict[int, int]
    """Number of those that wait by priority, highest first."""
    oldest_queued_s: float | None
    """Seconds that the experiment which waits longest has waited; None if none waits."""
    queue_paused: bool
    """Whether no experiment may leave the queue."""
    oldest_lease_s: float | None
    """Seconds since the oldest lease under way was taken; None without leases."""
    expired_leases: int
    """Leases that ran out and that nobody has taken over yet."""
    dispatcher_heartbeat_s: float | None
    """Seconds since any dispatcher's last sign of life; None if there was none for a day."""


def take(db: Database) -> Census:
    """Looks.

    Raises:
        DatabaseUnavailable: The database does not answer.
    """
    with db.read() as session:
        moment = now(session)
        counts = session.execute(select(Experiment.state, func.count()).group_by(Experiment.state))
        by_state: dict[str, int] = {row[0]: row[1] for row in counts}
        waiting = session.execute(
            select(Experiment.priority, func.count())
            .where(Experiment.state == ExperimentState.QUEUED)
            .group_by(Experiment.priority)
            .order_by(Experiment.priority.desc())
        )
        by_priority: dict[int, int] = {row[0]: row[1] for row in waiting}
        queued_at = session.execute(
            select(func.min(Experiment.submitted_at)).where(Experiment.state == ExperimentState.QUEUED)
        ).scalar_one()
        leased_at = session.execute(
            select(func.min(Experiment.leased_at)).where(Experiment.state.in_(LEASED_STATES))
        ).scalar_one()
        expired = session.execute(
            select(func.count()).where(
                Experiment.state.in_(LEASED_STATES),
                or_(Experiment.lease_expires_at.is_(None), Experiment.lease_expires_at <= moment),
            )
        ).scalar_one()
        beat_at = session.execute(select(func.max(Heartbeat.at))).scalar_one()
        return Census(
            experiments={state: by_state.get(state, 0) for state in ExperimentState},
            queued_by_priority=by_priority,
            oldest_queued_s=_age_s(queued_at, moment),
            queue_paused=switches.queue_is_paused(session),
            oldest_lease_s=_age_s(leased_at, moment),
            expired_leases=expired,
            dispatcher_heartbeat_s=_age_s(beat_at, moment),
        )


def _age_s(since: datetime | None, moment: datetime) -> float | None:
    return None if since is None else max(0.0, (moment - since) / timedelta(seconds=1))
