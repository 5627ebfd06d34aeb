"""Attempts at an experiment under a lease: begun with a key of their own, handed to the cluster, ended.

Every function takes the lease; one that was taken over changes nothing any more.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from phantom_core.protocol import Reason
from services import groups, keys
from services.aftermath import after_the_end
from services.attempt_ends import close_attempt
from services.database import Database, now
from services.endings import end_experiment
from services.errors import LeaseLost
from services.groups import Shape
from services.holds import Lease, held
from services.keys import NewKey
from services.moves import log, move_experiment
from services.states import TERMINAL_STATES, ExperimentState, GroupState
from services.tables import Experiment, ExperimentAttempt


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
        experiment = _begin(session, lease, reason, message)
        key = job_key(session, experiment)
        return IngestToken(experiment.id, experiment.attempt, key.token)


def begin_warm_attempt(
    db: Database, lease: Lease, shape: Shape, dashboard_url: Callable[[str], str]
) -> str | None:
    """Starts the next attempt in an idle worker group that fits, if there is one.

    The group gets the attempt's key when it asks for it (`group_calls.ask`).

    Args:
        db: The database.
        lease: The lease.
        shape: What the group must be like.
        dashboard_url: Gives the page of a Ray job.

    Returns:
        The Ray job of the group; None if none is idle.

    Raises:
        LeaseLost: Another dispatcher owns the experiment, or it has ended.
    """
    with db.write() as session:
        moment = now(session)
        if held(session, lease) is None:
            raise LeaseLost(f"{lease.owner} no longer holds {lease.experiment_id}")
        group = groups.choose(session, shape, moment)
        if group is None:
            return None
        experiment = _begin(session, lease, None, None)
        session.get_one(ExperimentAttempt, (experiment.id, experiment.attempt)).warm = True
        groups.move(group, GroupState.OFFERED, moment)
        group.experiment_id, group.attempt = experiment.id, experiment.attempt
        _note_job(session, lease, experiment, group.id, dashboard_url(group.id))
        return group.id


def job_key(session: Session, experiment: Experiment) -> NewKey:
    """A key for the job of the experiment's current attempt."""
    return keys.add_key(
        session,
        f"job of {experiment.id}, attempt {experiment.attempt}",
        frozenset({keys.Scope.INGEST}),
        experiment_id=experiment.id,
    )


def mark_starting(db: Database, lease: Lease, ray_job_id: str, dashboard_url: str | None = None) -> bool:
    """Writes down that the job was handed to the cluster.

    A job may report before this is written; then only its address is.

    Returns:
        Whether the lease still held.
    """
    with db.write() as session:
        experiment = held(session, lease)
        if experiment is None:
            return False
        _note_job(session, lease, experiment, ray_job_id, dashboard_url)
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
        experiment = held(session, lease)
        if experiment is None:
            return False
        ended = end_experiment(session, experiment, state, reason=reason, message=message)
    after_the_end(db, lease.experiment_id)
    return ended


def _begin(session: Session, lease: Lease, reason: Reason | None, message: str | None) -> Experiment:
    experiment = held(session, lease)
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
    close_attempt(session, experiment, reason, message, moment)
    experiment.attempt += 1
    session.add(
        ExperimentAttempt(
            experiment_id=experiment.id,
            attempt=experiment.attempt,
            begun_at=moment,
            leased_at=experiment.leased_at,
            warm=False,
        )
    )
    log(session, experiment, "attempt", {"attempt": experiment.attempt}, moment=moment)
    session.flush()
    return experiment


def _note_job(
    session: Session, lease: Lease, experiment: Experiment, ray_job_id: str, dashboard_url: str | None
) -> None:
    experiment.ray_job_id = ray_job_id
    job = session.get_one(ExperimentAttempt, (experiment.id, experiment.attempt))
    job.ray_job_id, job.ended_at = ray_job_id, None
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
