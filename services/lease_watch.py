"""Which leases are renewed and which are not, told without the clock that they run out by.

A lease holds a moment of the database's clock. Were that clock stepped forward by an hour, every lease would have run
out; stepped back, one whose dispatcher has died would hold for an hour longer. So every dispatcher also watches whether
the others renew theirs, by its own monotonic clock, as Kubernetes' leader election does.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from services.database import Database
from services.standing import Standing
from services.states import LEASED_STATES
from services.tables import Experiment


@dataclass(frozen=True)
class Watched:
    """What one dispatcher knows of leases; of those in neither set, their moments are all that is known."""

    silent: frozenset[str]
    """Tokens of those that were not renewed for as long as a lease lasts."""
    fresh: frozenset[str]
    """Tokens of those that were made or renewed since, and its own."""


NOTHING_SEEN = Watched(frozenset(), frozenset())
"""What somebody knows who has not looked yet."""


class LeaseWatch:
    """What one dispatcher has seen of the others' leases."""

    def __init__(self, ttl_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Args: how long a lease lasts, a monotonic clock."""
        self._ttl_s = ttl_s
        # Who stood still itself has not seen what the others did meanwhile.
        self._standing = Standing(clock_s, longest_gap_s=ttl_s)
        self._found: dict[str, datetime | None] | None = None

    def look(self, db: Database, own: Collection[str] = ()) -> Watched:
        """Looks at all leases.

        Args:
            db: The database.
            own: Tokens of leases that this dispatcher holds and renews.

        Returns:
            What is known of them now.
        """
        with db.read() as session:
            found = session.execute(
                select(Experiment.lease_token, Experiment.lease_expires_at).where(
                    Experiment.state.in_(LEASED_STATES), Experiment.lease_token.is_not(None)
                )
            ).all()
        leases = {str(token): expires_at for token, expires_at in found}
        if self._found is None:
            self._found = leases
        stood_s = self._standing.look(leases)
        untouched = {token for token, moment in self._found.items() if leases.get(token, ...) == moment}
        silent = {token for token, seconds in stood_s.items() if seconds > self._ttl_s}
        return Watched(
            frozenset(silent - set(own)), frozenset((leases.keys() - silent - untouched) | set(own))
        )
