"""Who works on an experiment: leases with owner, token and expiry.

Any number of dispatchers share one database. Each takes an experiment by `claim`, keeps it by `renew`, and
passes its lease to every change it makes (`attempts.py`); one whose lease was taken over changes nothing.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from phantom_core.protocol import Reason
from services.attempts import IngestToken, begin_attempt, begin_warm_attempt, finish, mark_starting
from services.database import Database, now
from services.endings import UNCOUNTED, runs_left
from services.errors import LeaseLost
from services.holds import Lease, held
from services.lease_watch import NOTHING_SEEN, Watched
from services.moves import log, move_experiment
from services.queue import give_turn_back, next_abandoned, next_queued, note_turn
from services.states import ExperimentState, GroupState
from services.switches import queue_is_paused
from services.tables import Experiment, ExperimentAttempt, WorkerGroup

__all__ = [
    "FollowView",
    "IngestToken",
    "Lease",
    "begin_attempt",
    "begin_warm_attempt",
    "claim",
    "finish",
    "follow",
    "mark_starting",
    "release",
    "renew",
]


@dataclass(frozen=True)
class FollowView:
    """What a dispatcher must know of its experiment while it follows the job."""

    state: ExperimentState
    """Now."""
    attempt: int
    """Starts of its job so far."""
    ray_job_id: str | None
    """The job of this attempt, if it was submitted."""
    cancel_requested: bool
    """Whether somebody wants it to end."""
    delete_requested: bool
    """Whether it goes once it has ended."""
    first_leased_at: datetime
    """When it was taken from the queue for the first attempt that reached the cluster; for this one if none has."""
    starting_at: datetime | None
    """When the job was handed over."""
    running_at: datetime | None
    """When the worker group reported."""
    last_event_at: datetime | None
    """Last sign of life from the job."""
    reported_outcome: str | None
    """What the job said of its own end."""
    reported_reason: Reason | None
    """Why."""
    reported_message: str | None
    """The same for a person."""
    runs_left: int
    """Runs that have not ended."""
    warm: bool
    """Whether this attempt was given to a worker group that stood ready."""
    has_reported: bool
    """Whether the worker group of this attempt has reported."""
    has_asked: bool
    """Whether the job of this attempt has asked what to do, or said anything."""
    offered_at: datetime | None
    """Since when a worker group has left this attempt unanswered; None if it hasn't."""
    starts: int
    """Attempts that count: those that reached Ray, without handovers to a group that was lost before it began, and
    without those that ended with their service."""
    handovers_lost: int
    """Those handovers."""
    now: datetime
    """The moment, by the clock that the times above were taken from."""


def claim(
    db: Database, owner: str, ttl_s: float, watched: Watched = NOTHING_SEEN, *, from_queue: bool = True
) -> Lease | None:
    """Takes an experiment to work on.

    First one whose dispatcher went silent (it may hold boards), then the queue: higher priority first, within it
    callers take turns (`queue.turns`).

    Args:
        db: The database.
        owner: Name of this dispatcher, unique among all processes.
        ttl_s: Seconds until the lease runs out unless renewed.
        watched: What this dispatcher has seen of leases, which outdoes their moments.
        from_queue: Whether something new may be begun; what was left by others is taken over anyway.

    Returns:
        The lease; None if there is nothing to do, or the queue is paused and nothing to take over.
    """
    with db.write() as session:
        moment = now(session)
        experiment = next_abandoned(session, moment, watched)
        if experiment is None and from_queue and not queue_is_paused(session):
            experiment = next_queued(session)
        if experiment is None:
            return None
        token = secrets.token_hex(16)
        if experiment.state == ExperimentState.QUEUED:
            move_experiment(session, experiment.id, ExperimentState.LEASED, expected={ExperimentState.QUEUED})
            note_turn(session, experiment.submitted_by)
        else:
            log(
                session,
                experiment,
                "taken_over",
                {"from": experiment.lease_owner, "by": owner},
                moment=moment,
            )
        experiment.lease_owner = owner
        experiment.lease_token = token
        experiment.lease_expires_at = moment + timedelta(seconds=ttl_s)
        return Lease(
            experiment_id=experiment.id,
            token=token,
            owner=owner,
            state=ExperimentState(experiment.state),
            attempt=experiment.attempt,
            ray_job_id=experiment.ray_job_id,
        )


def renew(db: Database, lease: Lease, ttl_s: float) -> bool:
    """Keeps a lease for another `ttl_s` seconds.

    Returns:
        Whether it still holds. False: another took over or the experiment ended; stop working on it.
    """
    with db.write() as session:
        experiment = held(session, lease)
        if experiment is None:
            return False
        experiment.lease_expires_at = now(session) + timedelta(seconds=ttl_s)
        return True


def release(db: Database, lease: Lease, *, message: str | None = None) -> bool:
    """Gives a lease back.

    An experiment that was not handed to the cluster yet goes back to the queue; one that was can be taken over. Both
    by any dispatcher and at once: an instant to wait for would be an hour away once the clock is set back by one.

    Args:
        db: The database.
        lease: The lease.
        message: Why, for people.

    Returns:
        Whether the lease still held.
    """
    with db.write() as session:
        experiment = held(session, lease)
        if experiment is None:
            return False
        if experiment.state != ExperimentState.LEASED:
            experiment.lease_expires_at = None  # free at once, whatever anybody has seen of this lease
            return True
        attempt = session.get(ExperimentAttempt, (experiment.id, experiment.attempt))
        if attempt is not None:
            attempt.ended_at = now(session)
        give_turn_back(session, experiment.submitted_by)
        return move_experiment(
            session,
            lease.experiment_id,
            ExperimentState.QUEUED,
            expected={ExperimentState.LEASED},
            token=lease.token,
            message=message,
        )


def attempts_of(session: Session, experiment_id: str) -> Sequence[ExperimentAttempt]:
    """All starts of an experiment's job, in order."""
    return session.scalars(
        select(ExperimentAttempt)
        .where(ExperimentAttempt.experiment_id == experiment_id)
        .order_by(ExperimentAttempt.attempt)
    ).all()


def first_leased_at(attempts: Sequence[ExperimentAttempt], leased_at: datetime) -> datetime:
    """Since when an experiment's whole deadline counts, as if it had not waited where its service was away.

    Args:
        attempts: All of its attempts, in order. Those that never reached the cluster were no start.
        leased_at: When it was last taken from the queue.
    """
    handed_over = (each for each in attempts if each.ray_job_id is not None)
    first = min((each.leased_at or each.begun_at for each in handed_over), default=leased_at)
    for number, each in enumerate(attempts, start=1):
        if each.reason == Reason.SERVICE_ENDED and each.ended_at is not None:
            taken = next((later.leased_at for later in attempts[number:] if later.leased_at), leased_at)
            first += max(timedelta(), taken - each.ended_at)
    return first


def follow(db: Database, lease: Lease) -> FollowView:
    """How the experiment stands.

    Raises:
        LeaseLost: Another dispatcher owns it, or it has ended or been deleted.
    """
    with db.read() as session:
        experiment = session.get(Experiment, lease.experiment_id)
        if experiment is None or experiment.lease_token != lease.token or experiment.leased_at is None:
            raise LeaseLost(f"{lease.owner} no longer holds {lease.experiment_id}")
        reason = experiment.reported_reason
        attempts = attempts_of(session, lease.experiment_id)
        current = next((each for each in attempts if each.attempt == experiment.attempt), None)
        handed_over = [each for each in attempts if each.ray_job_id is not None]
        counted = [each for each in handed_over if each.reason not in UNCOUNTED]
        lost = [each for each in handed_over if each.reason == Reason.GROUP_LOST]
        group = session.get(WorkerGroup, experiment.ray_job_id) if experiment.ray_job_id else None
        is_offered = (
            group is not None and group.state == GroupState.OFFERED and group.experiment_id == experiment.id
        )
        return FollowView(
            state=ExperimentState(experiment.state),
            attempt=experiment.attempt,
            ray_job_id=experiment.ray_job_id,
            cancel_requested=experiment.cancel_requested_at is not None,
            delete_requested=experiment.delete_requested_at is not None,
            first_leased_at=first_leased_at(attempts, experiment.leased_at),
            starting_at=experiment.starting_at,
            running_at=experiment.running_at,
            last_event_at=experiment.last_event_at,
            reported_outcome=experiment.reported_outcome,
            reported_reason=Reason(reason) if reason else None,
            reported_message=experiment.reported_message,
            runs_left=runs_left(session, lease.experiment_id),
            warm=current is not None and current.warm,
            has_reported=current is not None and current.environment is not None,
            has_asked=experiment.last_event_at is not None
            or (current is not None and current.reached_at is not None),
            offered_at=group.since if group is not None and is_offered else None,
            starts=len(counted),
            handovers_lost=len(lost),
            now=now(session),
        )
