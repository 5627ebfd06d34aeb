"""When a round is complete: the comparison rests on one round more from then on, which watchers want to know."""

from collections.abc import Collection

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from services.database import now
from services.moves import SERVICE
from services.states import TERMINAL_RUN_STATES
from services.tables import Event, Experiment, Run
from services.upserts import insert_new
from services.watching import ROUND_FINISHED

SOURCE = f"{SERVICE}.rounds"
"""`source` of these log lines; their `seq` is the round's number, so that each is written once."""


def log_finished(session: Session, experiment: Experiment, ended: Collection[int]) -> None:
    """Adds a line to the log for every round that is complete now; the caller holds the experiment's lock.

    Args:
        session: A write session.
        experiment: The experiment, locked.
        ended: Keys of runs that have ended.
    """
    if not ended:
        return
    session.flush()
    rounds = select(Run.round).where(Run.key.in_(ended)).distinct()
    complete = session.scalars(
        select(Run.round)
        .where(Run.experiment_id == experiment.id, Run.round.in_(rounds))
        .group_by(Run.round)
        .having(func.count() == func.count().filter(Run.state.in_(TERMINAL_RUN_STATES)))
        .order_by(Run.round)
    ).all()
    moment = now(session)
    insert_new(
        session,
        Event,
        [
            {
                "experiment_id": experiment.id,
                "subject_id": experiment.id,
                "attempt": 0,
                "source": SOURCE,
                "seq": number,
                "kind": ROUND_FINISHED,
                "at": moment,
                "received_at": moment,
                "note": None,
                "payload": {"round": number, "rounds": experiment.rounds},
            }
            for number in complete
        ],
    )
