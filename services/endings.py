"""How an experiment ends: its state, its runs, its key."""

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from phantom_core.protocol import Reason
from services import keys
from services.database import now
from services.moves import move_experiment
from services.states import EXPERIMENT_TRANSITIONS, ExperimentState, RunState
from services.tables import Experiment, Run

INGEST_GRACE_S = 3_600.0
"""Seconds after an experiment's end during which its job may still deliver late events."""

RETRIED = frozenset(
    {
        Reason.WORKER_LOST,
        Reason.JOB_UNKNOWN,
        Reason.JOB_FAILED,
        Reason.SERVICE_UNREACHED,
        Reason.SILENCE_DEADLINE,
        Reason.NO_PROGRESS,
    }
)
"""Faults of the infrastructure: another attempt may do better. The user's own errors are not among them."""

UNCOUNTED = frozenset({Reason.GROUP_LOST, Reason.SERVICE_ENDED})
"""Why attempts ended that are not counted: nothing went wrong with them."""

_ON_THE_WAY = {
    ExperimentState.QUEUED: ExperimentState.LEASED,
    ExperimentState.LEASED: ExperimentState.RUNNING,
    ExperimentState.STARTING: ExperimentState.RUNNING,
}


def end_experiment(
    session: Session,
    experiment: Experiment,
    state: ExperimentState,
    *,
    reason: Reason | None = None,
    message: str | None = None,
) -> bool:
    """Ends an experiment; the caller holds its lock.

    An experiment without a single successful run has not succeeded, whatever its job says.

    Args:
        session: A write session.
        experiment: The experiment, locked.
        state: A terminal state.
        reason: Why.
        message: The same for a person.

    Returns:
        Whether it ended so; False if it had ended already.
    """
    before = ExperimentState(experiment.state)
    if before.is_terminal:
        return False
    if state is ExperimentState.SUCCEEDED and not _any_succeeded(session, experiment.id):
        state, reason = ExperimentState.FAILED, Reason.ALL_RUNS_FAILED
        message = "no run succeeded; each run says why"
    while state not in EXPERIMENT_TRANSITIONS[before]:
        # A job's last word can overtake its others, and outlive its dispatcher: it was running all the same.
        on_the_way = _ON_THE_WAY[before]
        move_experiment(session, experiment.id, on_the_way, expected={before})
        before = on_the_way
    moved = move_experiment(session, experiment.id, state, expected={before}, reason=reason, message=message)
    keys.expire_of_experiment(session, experiment.id, now(session), INGEST_GRACE_S)
    return moved


def settle(session: Session, experiment: Experiment) -> bool:
    """Ends an experiment whose job has said how, once all of its runs have ended too.

    The job's last word may overtake those of its runs. If they never come, the dispatcher ends the
    experiment when the job itself has. So it does after a fault of the infrastructure, if it makes no other attempt.

    Returns:
        Whether it ended.
    """
    if experiment.reported_outcome is None or ExperimentState(experiment.state).is_terminal:
        return False
    if experiment.reported_reason in RETRIED or runs_left(session, experiment.id):
        return False
    return end_experiment(
        session,
        experiment,
        ExperimentState(experiment.reported_outcome),
        reason=Reason(experiment.reported_reason) if experiment.reported_reason else None,
        message=experiment.reported_message,
    )


def runs_left(session: Session, experiment_id: str) -> int:
    """Number of its runs that have not ended."""
    return session.execute(
        select(func.count())
        .select_from(Run)
        .where(Run.experiment_id == experiment_id, Run.state.in_([RunState.QUEUED, RunState.RUNNING]))
    ).scalar_one()


def _any_succeeded(session: Session, experiment_id: str) -> bool:
    found = session.scalars(
        select(Run.key).where(Run.experiment_id == experiment_id, Run.state == RunState.SUCCEEDED).limit(1)
    ).first()
    return found is not None
