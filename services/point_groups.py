"""Batches of points that come at the same time, of whatever experiments, share a transaction."""

from collections.abc import Sequence

from services.database import Database
from services.errors import DatabaseUnavailable
from services.point_writes import Sent, store
from services.write_groups import WriteGroups

MOST_TOGETHER = 32
"""Batches in one transaction."""
MOST_EVENTS = 1_000
"""Events after which no other batch joins a transaction: as many as one may have."""


class PointGroups(WriteGroups[Sent, int | None]):
    """Tells of each batch what `point_writes.store` does: how many of its events were new, None if it was left out."""

    def __init__(self, database: Database) -> None:
        """Begins.

        Args:
            database: Where to.
        """
        super().__init__(
            "points",
            lambda sent: _stored(database, sent),
            most_together=MOST_TOGETHER,
            most_rows=MOST_EVENTS,
            rows_of=lambda sent: len(sent.batch.events),
        )


def _stored(database: Database, sent: Sequence[Sent]) -> Sequence[int | None]:
    try:
        return store(database, sent)
    except DatabaseUnavailable:
        raise
    except Exception:
        if len(sent) > 1:
            raise
        # Nothing was written. `ingest` finds out what is wrong with it, and says so.
        return [None]
