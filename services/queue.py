"""Which experiment is next: first what a silent dispatcher left, then the queue, fair among its callers."""

from datetime import datetime

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session, aliased

from services.lease_watch import Watched
from services.states import LEASED_STATES, ExperimentState
from services.tables import Experiment


def next_abandoned(session: Session, moment: datetime, watched: Watched) -> Experiment | None:
    """The one whose lease ran out first, locked; others that look at once see the next.

    Args:
        session: A write session.
        moment: Now.
        watched: What is known of leases whatever their moments say.
    """
    return session.scalars(
        select(Experiment)
        .where(
            Experiment.state.in_(LEASED_STATES),
            or_(
                Experiment.lease_expires_at.is_(None),
                Experiment.lease_token.in_(watched.silent),
                (Experiment.lease_expires_at <= moment) & Experiment.lease_token.not_in(watched.fresh),
            ),
        )
        .order_by(Experiment.lease_expires_at)
        .limit(1)
        .with_for_update(skip_locked=True)
    ).first()


def next_queued(session: Session, moment: datetime) -> Experiment | None:
    """Highest priority first, within it callers who have less running, then order of arrival; locked."""
    active = aliased(Experiment)
    running_of_caller = (
        select(func.count())
        .where(
            active.state.in_(LEASED_STATES),
            active.submitted_by.is_not_distinct_from(Experiment.submitted_by),
        )
        .correlate(Experiment)
        .scalar_subquery()
    )
    return session.scalars(
        select(Experiment)
        .where(
            Experiment.state == ExperimentState.QUEUED,
            or_(Experiment.eligible_at.is_(None), Experiment.eligible_at <= moment),
        )
        .order_by(Experiment.priority.desc(), running_of_caller, Experiment.submitted_at, Experiment.id)
        .limit(1)
        .with_for_update(skip_locked=True, of=Experiment)
    ).first()
