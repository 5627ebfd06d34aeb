"""The end of an attempt after which the experiment goes on: what it measured stays, its unfinished runs are queued."""

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from phantom_core.protocol import Reason
from services import keys, summaries
from services.moves import move_run
from services.states import RunState
from services.tables import Attempt, Experiment, ExperimentAttempt, JobLog, Run


def close_attempt(
    session: Session,
    experiment: Experiment,
    reason: Reason | None,
    message: str | None,
    moment: datetime,
) -> None:
    """Ends the attempt under way, if there is one: its key stops working, and nothing of its job's is known any more.

    Args:
        session: A write session.
        experiment: The experiment, locked.
        reason: Why the attempt ended.
        message: The same for a person.
        moment: When.
    """
    last = session.get(ExperimentAttempt, (experiment.id, experiment.attempt))
    if last is not None:
        if last.reason is None:
            last.reason, last.message = reason, message
        last.ended_at = last.ended_at or moment
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
            summaries.cut_off(session, experiment, attempt, run)
        if run.state == RunState.RUNNING:
            move_run(session, run, RunState.QUEUED, reason=reason, message=message, at=moment)
    printed = session.get(JobLog, (experiment.id, experiment.attempt))
    if printed is not None:
        printed.is_complete = True  # nobody asks for the rest any more
    experiment.ray_job_id = experiment.ray_dashboard_url = None
    experiment.last_event_at = None
    experiment.reported_outcome = experiment.reported_reason = experiment.reported_message = None
    keys.revoke_of_experiment(session, experiment.id)
    session.flush()
