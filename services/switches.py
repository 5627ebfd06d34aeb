"""Settings that all service processes share while they run: so far, the pause of the queue."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from services.database import Database, now
from services.tables import Switch

_PAUSE = "queue_pause"


@dataclass(frozen=True)
class Pause:
    """Why no experiment leaves the queue."""

    reason: str
    """In the words of whoever paused it."""
    since: datetime
    """When it was set."""


def pause_queue(db: Database, reason: str) -> None:
    """Lets no queued experiment start until `resume_queue`; those that have begun go on.

    Args:
        db: The database.
        reason: Why, for whoever wonders.
    """
    with db.write() as session:
        session.merge(Switch(name=_PAUSE, value={"reason": reason}, set_at=now(session)))


def resume_queue(db: Database) -> None:
    """Ends the pause; without one it does nothing."""
    with db.write() as session:
        switch = session.get(Switch, _PAUSE)
        if switch is not None:
            session.delete(switch)


def pause(db: Database) -> Pause | None:
    """The queue's pause; None if it isn't paused."""
    with db.read() as session:
        switch = session.get(Switch, _PAUSE)
        return None if switch is None else Pause(str(switch.value["reason"]), switch.set_at)


def queue_pause(db: Database) -> str | None:
    """Why the queue is paused; None if it isn't."""
    found = pause(db)
    return None if found is None else found.reason


def queue_is_paused(session: Session) -> bool:
    """Whether the queue is paused."""
    return session.get(Switch, _PAUSE) is not None
