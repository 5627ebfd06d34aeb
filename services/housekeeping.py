"""What must be done now and then, by any process, and does no harm if two do it: see `sweep`."""

from dataclasses import dataclass

from services import comparisons, deletion
from services.database import Database


@dataclass(frozen=True)
class Swept:
    """What a sweep did."""

    deleted: int
    """Experiments that somebody wanted gone."""
    compared: int
    """Comparisons that were missing."""
    pruned: int
    """Rows of old power samples and board states."""


def sweep(db: Database, *, power_retention_days: float | None = None) -> Swept:
    """Finishes what processes that died have left, and forgets what is too old.

    Args:
        db: The database.
        power_retention_days: Days for which power samples are kept after an experiment's end; None for ever.
    """
    return Swept(
        deleted=deletion.delete_asked(db),
        compared=comparisons.store_missing(db),
        pruned=0 if power_retention_days is None else deletion.prune_power(db, power_retention_days),
    )
