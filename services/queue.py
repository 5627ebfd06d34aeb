"""Which experiment is next: first what a silent dispatcher left, then the queue, in which callers take turns.

Turns are numbered, not timed: a clock that is set back would make the last one served look like the one who has waited
longest, for as long as it was set back.
"""

from datetime import datetime

from sqlalchemy import Select, case, func, or_, select, true, update
from sqlalchemy.orm import Session

from services.lease_watch import Watched
from services.states import LEASED_STATES, ExperimentState
from services.tables import Experiment, QueueTurn
from services.upserts import insert_new


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


def next_queued(session: Session) -> Experiment | None:
    """Highest priority first, within it callers in their `turns`, of one caller in order of arrival; locked."""
    priority = session.scalar(highest_priority())
    while priority is not None:
        for caller in session.scalars(turns(priority)).all():
            found = session.scalars(next_of(priority, caller).with_for_update(skip_locked=True)).first()
            if found is not None:
                return found
        priority = session.scalar(highest_priority(priority))
    return None


def highest_priority(below: int | None = None) -> Select[int | None]:
    """The highest priority that waits, of those below one if that is given."""
    lower = true() if below is None else Experiment.priority < below
    return select(func.max(Experiment.priority)).where(Experiment.state == ExperimentState.QUEUED, lower)


def turns(priority: int) -> Select[str | None]:
    """Callers that wait at a priority, in the order in which they are served.

    First who has fewer running, then who was served longest ago, then whose oldest has waited longest. They are found
    by jumping from one to the next in the index, past what each of them has queued.
    """
    waits = (Experiment.state == ExperimentState.QUEUED, Experiment.priority == priority)
    # Without anybody's name it ends, and says so; NULL is also the name of those who have none.
    callers = select(func.min(Experiment.submitted_by).label("name")).where(*waits).cte(recursive=True)
    following = (
        select(func.min(Experiment.submitted_by))
        .where(*waits, Experiment.submitted_by > callers.c.name)
        .correlate(callers)
        .scalar_subquery()
    )
    callers = callers.union_all(select(following).where(callers.c.name.is_not(None)))
    oldest = select(func.min(Experiment.submitted_at)).where(*waits)
    since = case(
        (
            callers.c.name.is_(None),
            oldest.where(Experiment.submitted_by.is_(None)).scalar_subquery(),
        ),
        else_=oldest.where(Experiment.submitted_by == callers.c.name).correlate(callers).scalar_subquery(),
    )
    waiting = select(callers.c.name, since.label("since")).subquery()
    running = (
        select(Experiment.submitted_by, func.count().label("count"))
        .where(Experiment.state.in_(LEASED_STATES))
        .group_by(Experiment.submitted_by)
        .subquery()
    )
    return (
        select(waiting.c.name)
        .outerjoin(running, running.c.submitted_by.is_not_distinct_from(waiting.c.name))
        .outerjoin(QueueTurn, QueueTurn.caller == func.coalesce(waiting.c.name, ""))
        .where(waiting.c.since.is_not(None))
        .order_by(
            func.coalesce(running.c["count"], 0),
            func.coalesce(QueueTurn.turn, 0),
            waiting.c.since,
            waiting.c.name,
        )
    )


def next_of(priority: int, caller: str | None) -> Select[Experiment]:
    """A caller's oldest of one priority."""
    return (
        select(Experiment)
        .where(
            Experiment.state == ExperimentState.QUEUED,
            Experiment.priority == priority,
            Experiment.submitted_by == caller,
        )
        .order_by(Experiment.submitted_at, Experiment.id)
        .limit(1)
    )


def note_turn(session: Session, caller: str | None) -> None:
    """Writes down that a caller was served just now."""
    name = caller or ""
    insert_new(session, QueueTurn, [{"caller": name, "turn": 0}])
    latest = select(func.max(QueueTurn.turn)).scalar_subquery()
    session.execute(update(QueueTurn).where(QueueTurn.caller == name).values(turn=latest + 1))


def give_turn_back(session: Session, caller: str | None) -> None:
    """Lets a caller be next: what it was served with goes back to the queue through no fault of its own."""
    session.execute(update(QueueTurn).where(QueueTurn.caller == (caller or "")).values(turn=0))
