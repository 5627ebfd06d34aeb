"""Settings that all service processes share while they run: so far, the pause of the queue."""

from sqlalchemy.orm import Session

from services.database import Database, now
from services.tables import Switch

_PAUSE = "queue_pause"


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


def queue_pause(db: Database) -> str | None:
    """Why the queue is paused; None if it isn't."""
    with db.read() as session:
        switch = session.get(Switch, _PAUSE)
        return None if switch is None else str(switch.value["reason"])


def queue_is_paused(session: Session) -> bool:
    """Whether the queue is paused."""
    return session.get(Switch, _PAUSE) is not None
