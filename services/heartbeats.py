"""Signs of life of the dispatchers, so that any process can tell whether one works."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, select

from services.database import Database, now
from services.tables import Heartbeat
from services.views import HeartbeatView

LIVES_S = 30.0
"""Seconds without a beat after which a service counts as gone; one comes every few."""
_FORGOTTEN_AFTER = timedelta(days=1)


def beat(db: Database, owner: str, state: dict[str, Any] | None = None) -> None:
    """Says that a dispatcher is alive.

    Args:
        db: The database.
        owner: Its name.
        state: What it knows that others may want to (whether the cluster answers, say).
    """
    with db.write() as session:
        moment = now(session)
        session.merge(Heartbeat(owner=owner, at=moment, state=state or {}))
        session.execute(delete(Heartbeat).where(Heartbeat.at < moment - _FORGOTTEN_AFTER))


def alive(db: Database, within_s: float) -> tuple[HeartbeatView, ...]:
    """Dispatchers that were alive in the last seconds, latest first."""
    with db.read() as session:
        moment = now(session)
        rows = session.scalars(
            select(Heartbeat)
            .where(Heartbeat.at >= moment - timedelta(seconds=within_s))
            .order_by(Heartbeat.at.desc(), Heartbeat.owner)
        )
        return tuple(
            HeartbeatView(owner=row.owner, at=row.at, age_s=_age_s(row.at, moment), state=row.state)
            for row in rows
        )


def service_urls(db: Database) -> tuple[str, ...]:
    """Addresses at which jobs reach the services that live, each once, the one heard last first."""
    told = [view.state.get("service_url") for view in alive(db, LIVES_S)]
    return tuple(dict.fromkeys(url for url in told if isinstance(url, str)))


def _age_s(at: datetime, moment: datetime) -> float:
    return max(0.0, (moment - at) / timedelta(seconds=1))
