"""The one place where states change: compare-and-set, with a line in the log, in the caller's transaction."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from phantom_core.protocol import Reason
from services import summaries
from services.database import now
from services.states import (
    DEFAULT_REASONS,
    EXPERIMENT_TRANSITIONS,
    LEASED_STATES,
    RUN_TRANSITIONS,
    RUNS_LEFT_BY,
    ExperimentState,
    RunState,
)
from services.tables import Attempt, Event, Experiment, ExperimentAttempt, Run, table

SERVICE = "service"
"""`source` of the log lines that the service writes itself."""


def lock_experiment(session: Session, experiment_id: str) -> Experiment | None:
    """The experiment, locked until the transaction ends; None if there is none.

    On SQLite the whole database is locked already, by the write that the session is.
    """
    return session.scalars(
        select(Experiment)
        .where(Experiment.id == experiment_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()


def move_experiment(
    session: Session,
    experiment_id: str,
    to: ExperimentState,
    *,
    expected: Iterable[ExperimentState],
    token: str | None = None,
    reason: Reason | None = None,
    message: str | None = None,
) -> bool:
    """Changes an experiment's state if it is in one of the expected ones.

    A terminal state ends its unfinished runs too, clears the lease, and lets the job's key expire.

    Args:
        session: A write session.
        experiment_id: Which.
        to: The new state.
        expected: States that it may be in now.
        token: Lease that must hold; None asks for none (events of the job, which carry their own key).
        reason: Why; a default is taken for failed, cancelled and lost.
        message: The same for a person.

    Returns:
        Whether it changed. False means that another was quicker, or that the lease is lost.

    Raises:
        ValueError: The table of transitions forbids it from one of the expected states.
    """
    states = frozenset(expected)
    forbidden = sorted(state for state in states if to not in EXPERIMENT_TRANSITIONS[state])
    if forbidden:
        raise ValueError(f"an experiment can't go from {', '.join(forbidden)} to {to}")
    experiment = lock_experiment(session, experiment_id)
    if experiment is None or experiment.state not in states:
        return False
    if token is not None and experiment.lease_token != token:
        return False
    moment = now(session)
    before = experiment.state
    reason = reason or DEFAULT_REASONS.get(to)
    experiment.state = to
    experiment.reason = reason
    experiment.message = message
    if to not in LEASED_STATES:
        experiment.lease_owner = experiment.lease_token = experiment.lease_expires_at = None
    _stamp(experiment, to, moment)
    log(
        session,
        experiment,
        "state",
        {"from": before, "to": to, "reason": reason, "message": message},
        moment=moment,
    )
    session.flush()
    if to.is_terminal:
        _end_runs(session, experiment, to, reason, message, moment)
    return True


def move_run(
    session: Session,
    run: Run,
    to: RunState,
    *,
    reason: Reason | None = None,
    message: str | None = None,
    at: datetime | None = None,
) -> bool:
    """Changes a run's state if the table of transitions allows it from where it is.

    The caller holds the experiment's lock (`lock_experiment`), under which alone runs change.

    Args:
        session: A write session.
        run: The run, read under the lock.
        to: The new state.
        reason: Why.
        message: The same for a person.
        at: When it happened; None takes now.

    Returns:
        Whether it changed.
    """
    before = RunState(run.state)
    if to not in RUN_TRANSITIONS[before]:
        return False
    moment = at or now(session)
    run.state = to
    run.reason = reason
    run.message = message
    if to is RunState.QUEUED:
        run.started_at = None
    elif to is RunState.RUNNING:
        run.started_at = moment
    else:
        run.finished_at = moment
    return True


def log(
    session: Session,
    experiment: Experiment,
    kind: str,
    payload: dict[str, Any],
    *,
    moment: datetime,
    subject_id: str | None = None,
    attempt: int | None = None,
) -> None:
    """Raises the experiment's version and adds a line of the service's own to its log."""
    experiment.version += 1
    log_line(
        session,
        experiment_id=experiment.id,
        subject_id=subject_id or experiment.id,
        attempt=experiment.attempt if attempt is None else attempt,
        seq=experiment.version,
        kind=kind,
        payload=payload,
        moment=moment,
    )


def log_line(
    session: Session,
    *,
    experiment_id: str,
    subject_id: str,
    attempt: int,
    seq: int,
    kind: str,
    payload: dict[str, Any],
    moment: datetime,
) -> None:
    """Adds one line of the service's own to the log of an experiment whose row is written."""
    session.connection().execute(
        table(Event).insert(),
        {
            "experiment_id": experiment_id,
            "subject_id": subject_id,
            "attempt": attempt,
            "source": SERVICE,
            "seq": seq,
            "kind": kind,
            "at": moment,
            "received_at": moment,
            "payload": payload,
        },
    )


def _stamp(experiment: Experiment, to: ExperimentState, moment: datetime) -> None:
    match to:
        case ExperimentState.QUEUED:
            experiment.leased_at = None
        case ExperimentState.LEASED:
            experiment.leased_at = moment
            experiment.starting_at = experiment.running_at = None
        case ExperimentState.STARTING:
            experiment.starting_at = moment
        case ExperimentState.RUNNING:
            experiment.running_at = moment
            experiment.starting_at = experiment.starting_at or moment
        case _:
            experiment.finished_at = moment


def _end_runs(
    session: Session,
    experiment: Experiment,
    ended: ExperimentState,
    reason: Reason | None,
    message: str | None,
    moment: datetime,
) -> None:
    left = session.scalars(
        select(Run).where(
            Run.experiment_id == experiment.id, Run.state.in_([RunState.QUEUED, RunState.RUNNING])
        )
    ).all()
    if ended is ExperimentState.SUCCEEDED:
        reason = Reason.JOB_FAILED
        message = "the job ended well but never reported how this run did"
    for run in left:
        to = RUNS_LEFT_BY[ended][RunState(run.state)]
        move_run(session, run, to, reason=reason, message=message, at=moment)
    unfinished = session.execute(
        select(Attempt, Run)
        .join(Run, Run.key == Attempt.run_key)
        .where(Run.experiment_id == experiment.id, Attempt.outcome.is_(None))
    ).all()
    for attempt, run in unfinished:
        attempt.outcome, attempt.reason, attempt.message = run.state, reason, message
        attempt.finished_at = moment
        summaries.cut_off(session, experiment, attempt, run)
    job = session.get(ExperimentAttempt, (experiment.id, experiment.attempt))
    if job is not None:
        job.ended_at = job.ended_at or moment
    session.flush()
