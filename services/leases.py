"""Who works on an experiment: leases with owner, token and expiry, and the attempts made under them.

Any number of dispatchers share one database. Each takes an experiment by `claim`, keeps it by `renew`, and
passes its lease to every change it makes; one whose lease was taken over changes nothing any more.
"""

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session, aliased

from phantom_core.protocol import Reason
from services import comparisons, deletion, keys, summaries
from services.database import Database, now
from services.endings import end_experiment, runs_left
from services.errors import LeaseLost
from services.moves import lock_experiment, log, move_experiment, move_run
from services.states import LEASED_STATES, TERMINAL_STATES, ExperimentState, RunState
from services.switches import queue_is_paused
from services.tables import Attempt, Experiment, ExperimentAttempt, Run


@dataclass(frozen=True)
class Lease:
    """One dispatcher's hold on one experiment."""

    experiment_id: str
    """The experiment."""
    token: str
    """Proves the hold; every claim makes a new one."""
    owner: str
    """Which dispatcher."""
    state: ExperimentState
    """The experiment's state when it was claimed: `leased`, or that of one taken over."""
    attempt: int = 0
    """Starts of its job so far."""
    ray_job_id: str | None = None
    """The job of the last attempt, if it was submitted."""


@dataclass(frozen=True)
class IngestToken:
    """What one attempt's job needs to report."""

    experiment_id: str
    """The experiment."""
    attempt: int
    """Number of this start, from 1."""
    token: str
    """The key, whole; it can't be read again."""

    def __repr__(self) -> str:
        """Without the token, so that no log can hold it."""
        return f"IngestToken(experiment_id={self.experiment_id!r}, attempt={self.attempt})"


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
    leased_at: datetime
    """When this attempt began."""
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
    now: datetime
    """The moment, by the clock that the times above were taken from."""


def claim(db: Database, owner: str, ttl_s: float) -> Lease | None:
    """Takes an experiment to work on.

    First one whose dispatcher went silent (it may hold boards), then the queue: higher priority first,
    within it callers who have less running, then order of arrival.

    Args:
        db: The database.
        owner: Name of this dispatcher, unique among all processes.
        ttl_s: Seconds until the lease runs out unless renewed.

    Returns:
        The lease; None if there is nothing to do, or the queue is paused and nothing to take over.
    """
    with db.write() as session:
        moment = now(session)
        experiment = _next_abandoned(session, moment)
        if experiment is None and not queue_is_paused(session):
            experiment = _next_queued(session, moment)
        if experiment is None:
            return None
        token = secrets.token_hex(16)
        if experiment.state == ExperimentState.QUEUED:
            move_experiment(session, experiment.id, ExperimentState.LEASED, expected={ExperimentState.QUEUED})
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
        experiment = _held(session, lease)
        if experiment is None:
            return False
        experiment.lease_expires_at = now(session) + timedelta(seconds=ttl_s)
        return True


def release(db: Database, lease: Lease, *, retry_after_s: float = 0.0, message: str | None = None) -> bool:
    """Gives a lease back.

    An experiment that was not handed to the cluster yet goes back to the queue; one that was can be taken
    over by another dispatcher at once.

    Args:
        db: The database.
        lease: The lease.
        retry_after_s: Seconds for which no dispatcher shall take it again, for one that doesn't fit now.
        message: Why, for people.

    Returns:
        Whether the lease still held.
    """
    with db.write() as session:
        experiment = _held(session, lease)
        if experiment is None:
            return False
        moment = now(session)
        if experiment.state != ExperimentState.LEASED:
            experiment.lease_expires_at = moment
            return True
        experiment.eligible_at = moment + timedelta(seconds=retry_after_s)
        return move_experiment(
            session,
            lease.experiment_id,
            ExperimentState.QUEUED,
            expected={ExperimentState.LEASED},
            token=lease.token,
            message=message,
        )


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
        return FollowView(
            state=ExperimentState(experiment.state),
            attempt=experiment.attempt,
            ray_job_id=experiment.ray_job_id,
            cancel_requested=experiment.cancel_requested_at is not None,
            delete_requested=experiment.delete_requested_at is not None,
            leased_at=experiment.leased_at,
            starting_at=experiment.starting_at,
            running_at=experiment.running_at,
            last_event_at=experiment.last_event_at,
            reported_outcome=experiment.reported_outcome,
            reported_reason=Reason(reason) if reason else None,
            reported_message=experiment.reported_message,
            runs_left=runs_left(session, lease.experiment_id),
            now=now(session),
        )


def begin_attempt(
    db: Database, lease: Lease, *, reason: Reason | None = None, message: str | None = None
) -> IngestToken:
    """Starts the next attempt: earlier jobs' keys stop working, their running runs are queued again.

    What earlier attempts measured stays, with their number.

    Args:
        db: The database.
        lease: The lease.
        reason: Why the last attempt ended; for the first attempt there is nothing to say.
        message: The same for a person.

    Returns:
        The key for the new job, for the only time.

    Raises:
        LeaseLost: Another dispatcher owns the experiment, or it has ended.
    """
    with db.write() as session:
        experiment = _held(session, lease)
        if experiment is None:
            raise LeaseLost(f"{lease.owner} no longer holds {lease.experiment_id}")
        moment = now(session)
        if experiment.state != ExperimentState.LEASED:
            move_experiment(
                session,
                experiment.id,
                ExperimentState.LEASED,
                expected={ExperimentState.STARTING, ExperimentState.RUNNING},
                token=lease.token,
                reason=reason,
                message=message,
            )
        _close_attempt(session, experiment, reason, message, moment)
        experiment.attempt += 1
        session.add(
            ExperimentAttempt(experiment_id=experiment.id, attempt=experiment.attempt, begun_at=moment)
        )
        experiment.ray_job_id = experiment.ray_dashboard_url = None
        experiment.last_event_at = None
        experiment.reported_outcome = experiment.reported_reason = experiment.reported_message = None
        keys.revoke_of_experiment(session, experiment.id)
        key = keys.add_key(
            session,
            f"job of {experiment.id}, attempt {experiment.attempt}",
            frozenset({keys.Scope.INGEST}),
            experiment_id=experiment.id,
        )
        log(session, experiment, "attempt", {"attempt": experiment.attempt}, moment=moment)
        return IngestToken(experiment.id, experiment.attempt, key.token)


def mark_starting(db: Database, lease: Lease, ray_job_id: str, dashboard_url: str | None = None) -> bool:
    """Writes down that the job was handed to the cluster.

    A job may report before this is written; then only its address is.

    Returns:
        Whether the lease still held.
    """
    with db.write() as session:
        experiment = _held(session, lease)
        if experiment is None:
            return False
        experiment.ray_job_id = ray_job_id
        job = session.get_one(ExperimentAttempt, (experiment.id, experiment.attempt))
        job.ray_job_id = ray_job_id
        experiment.ray_dashboard_url = dashboard_url
        if experiment.state == ExperimentState.LEASED:
            # Its worker group may have reported while nobody held the lease.
            reported = job.environment is not None
            move_experiment(
                session,
                experiment.id,
                ExperimentState.RUNNING if reported else ExperimentState.STARTING,
                expected={ExperimentState.LEASED},
                token=lease.token,
            )
        else:
            experiment.version += 1
        return True


def finish(
    db: Database,
    lease: Lease,
    state: ExperimentState,
    reason: Reason | None = None,
    message: str | None = None,
) -> bool:
    """Ends an experiment with its unfinished runs, and deletes it if that was asked.

    Args:
        db: The database.
        lease: The lease.
        state: A terminal state.
        reason: Why.
        message: The same for a person.

    Returns:
        Whether it ended so. False if the lease was lost or it had ended already.

    Raises:
        ValueError: The state is not terminal.
    """
    if state not in TERMINAL_STATES:
        raise ValueError(
            f"{state} ends nothing; the terminal states are {', '.join(sorted(TERMINAL_STATES))}"
        )
    with db.write() as session:
        experiment = _held(session, lease)
        if experiment is None:
            return False
        ended = end_experiment(session, experiment, state, reason=reason, message=message)
    comparisons.store(db, lease.experiment_id)
    deletion.delete_if_asked(db, lease.experiment_id)
    return ended


def _next_abandoned(session: Session, moment: datetime) -> Experiment | None:
    return session.scalars(
        select(Experiment)
        .where(
            Experiment.state.in_(LEASED_STATES),
            or_(Experiment.lease_expires_at.is_(None), Experiment.lease_expires_at <= moment),
        )
        .order_by(Experiment.lease_expires_at)
        .limit(1)
        .with_for_update(skip_locked=True)
    ).first()


def _next_queued(session: Session, moment: datetime) -> Experiment | None:
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


def _held(session: Session, lease: Lease) -> Experiment | None:
    """The experiment, locked, if the lease still holds. One that ran out holds until somebody takes over."""
    experiment = lock_experiment(session, lease.experiment_id)
    return experiment if experiment is not None and experiment.lease_token == lease.token else None


def _close_attempt(
    session: Session,
    experiment: Experiment,
    reason: Reason | None,
    message: str | None,
    moment: datetime,
) -> None:
    """Ends the attempt under way, if there is one: its unfinished runs are queued again."""
    last = session.get(ExperimentAttempt, (experiment.id, experiment.attempt))
    if last is not None:
        last.ended_at, last.reason, last.message = moment, reason, message
    left = session.scalars(
        select(Run).where(
            Run.experiment_id == experiment.id, Run.state.in_([RunState.QUEUED, RunState.RUNNING])
        )
    ).all()
    unfinished = {
        attempt.run_key: attempt
        for attempt in session.scalars(
            select(Attempt)
            .join(Run, Run.key == Attempt.run_key)
            .where(Run.experiment_id == experiment.id, Attempt.outcome.is_(None))
        )
    }
    for run in left:
        attempt = unfinished.get(run.key)
        if attempt is not None:
            began = run.state == RunState.RUNNING
            attempt.outcome = RunState.FAILED if began else RunState.CANCELLED
            attempt.reason, attempt.message = reason or Reason.WORKER_LOST, message
            attempt.finished_at = moment
            summaries.spent(session, attempt, run)
        if run.state == RunState.RUNNING:
            move_run(session, run, RunState.QUEUED, reason=reason, message=message, at=moment)
    session.flush()
