"""Leases that nobody renews any more, told without the clock that they run out by.

A lease holds a moment of the database's clock. If that clock is stepped back by an hour, a lease whose dispatcher has
died would hold for an hour longer; so every dispatcher also watches whether the others renew theirs, by its own
monotonic clock, as Kubernetes' leader election does.
"""

import time
from collections.abc import Callable

from sqlalchemy import select

from services.database import Database
from services.standing import Standing
from services.states import LEASED_STATES
from services.tables import Experiment


class LeaseWatch:
    """What one dispatcher has seen of the others' leases."""

    def __init__(self, owner: str, ttl_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Args: the dispatcher that watches, how long a lease lasts, a monotonic clock."""
        self._owner = owner
        self._ttl_s = ttl_s
        # Who stood still itself has not seen what the others did meanwhile.
        self._standing = Standing(clock_s, longest_gap_s=ttl_s)

    def silent(self, db: Database) -> frozenset[str]:
        """Looks at all leases of others.

        Returns:
            Tokens of those that have not been renewed for as long as a lease lasts, by this process's clock.
        """
        with db.read() as session:
            leases = session.execute(
                select(Experiment.lease_token, Experiment.lease_expires_at).where(
                    Experiment.state.in_(LEASED_STATES),
                    Experiment.lease_token.is_not(None),
                    Experiment.lease_owner != self._owner,
                )
            ).all()
        stood_s = self._standing.look({str(token): expires_at for token, expires_at in leases})
        return frozenset(token for token, seconds in stood_s.items() if seconds > self._ttl_s)
