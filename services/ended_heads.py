"""What becomes of experiments whose jobs ended with their head, because its service was told to end.

That is no fault of theirs: they go back into the queue, and the attempt is not counted against those that faults may
cost. Who is cancelled ends as cancelled; who has reported a fault itself is judged by that when it is taken over.
"""

import logging

from sqlalchemy import delete, or_, select
from sqlalchemy.orm import Session

from phantom_core.protocol import Reason
from services.aftermath import after_the_end
from services.attempt_ends import close_attempt
from services.database import Database, now
from services.endings import end_experiment
from services.moves import move_experiment
from services.queue import give_turn_back
from services.states import ExperimentState
from services.tables import Experiment, WorkerGroup

log = logging.getLogger(__name__)

HANDED_OVER = (ExperimentState.STARTING, ExperimentState.RUNNING)
SAID = (
    "the service was told to end, and ended the Ray head that it kept, and with that this attempt; the experiment "
    "waits in the queue for the service to start again"
)


def put_back(db: Database, address: str) -> list[str]:
    """Takes note that a head was ended in order, with all its jobs; to be called when they are gone.

    Args:
        db: The database.
        address: Of the head's job server.

    Returns:
        The experiments that went back into the queue.
    """
    ran_there = (
        Experiment.state.in_(HANDED_OVER),
        Experiment.ray_dashboard_url.startswith(f"{address}/", autoescape=True),
        or_(Experiment.reported_outcome.is_(None), Experiment.reported_outcome != "failed"),
    )
    with db.read() as session:
        found = session.scalars(
            select(Experiment.id).where(*ran_there).order_by(Experiment.submitted_at)
        ).all()
    waiting = []
    for identifier in found:
        with db.write() as session:
            # Another look, under the lock: its end may have been told meanwhile.
            experiment = session.scalars(
                select(Experiment).where(Experiment.id == identifier, *ran_there).with_for_update()
            ).one_or_none()
            if experiment is None:
                continue
            session.execute(delete(WorkerGroup).where(WorkerGroup.id == experiment.ray_job_id))
            is_cancelled = experiment.cancel_requested_at is not None
            if is_cancelled:
                _cancel(session, experiment)
            else:
                _queue(session, experiment)
                waiting.append(identifier)
        if is_cancelled:
            after_the_end(db, identifier)
    if waiting:
        log.info("back in the queue, since their Ray head was ended: %s", ", ".join(waiting))
    return waiting


def _cancel(session: Session, experiment: Experiment) -> None:
    end_experiment(
        session,
        experiment,
        ExperimentState.CANCELLED,
        reason=Reason.CANCELLED_BY_USER,
        message="cancelled on request",
    )


def _queue(session: Session, experiment: Experiment) -> None:
    for before, to in (
        (HANDED_OVER, ExperimentState.LEASED),
        ((ExperimentState.LEASED,), ExperimentState.QUEUED),
    ):
        move_experiment(
            session, experiment.id, to, expected=before, reason=Reason.SERVICE_ENDED, message=SAID
        )
    close_attempt(session, experiment, Reason.SERVICE_ENDED, SAID, now(session))
    give_turn_back(session, experiment.submitted_by)
