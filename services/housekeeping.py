"""What must be done now and then, by any process, and does no harm if two do it: see `sweep`."""

from dataclasses import dataclass
from functools import partial

from services import comparisons, deletion
from services.database import Database
from services.mishaps import Mishaps


@dataclass(frozen=True)
class Swept:
    """What a sweep did."""

    deleted: int
    """Experiments that somebody wanted gone."""
    compared: int
    """Comparisons that were missing."""
    pruned: int
    """Rows of old power samples and board states."""
    joined: int
    """Long blocks of power readings that were made of small ones."""


def sweep(
    db: Database, *, power_retention_days: float | None = None, mishaps: Mishaps | None = None
) -> Swept:
    """Finishes what processes that died have left, and forgets what is too old.

    Args:
        db: The database.
        power_retention_days: Days for which power samples are kept after an experiment's end; None for ever.
        mishaps: What went wrong in earlier sweeps, and now: none of it is the other work's business.
    """
    tried = Mishaps() if mishaps is None else mishaps
    return Swept(
        deleted=tried.attempt("deleting", partial(deletion.delete_asked, db, tried), 0),
        compared=tried.attempt("comparing", partial(comparisons.store_missing, db, tried), 0),
        pruned=0
        if power_retention_days is None
        else tried.attempt("pruning", partial(deletion.prune_power, db, power_retention_days), 0),
        joined=tried.attempt("joining power", partial(_join_power, db, tried), 0),
    )


def _join_power(db: Database, mishaps: Mishaps) -> int:
    # Not at the top: it brings NumPy, which a service needs at the first power reading, not to start.
    from services.power_joining import join_all

    return join_all(db, mishaps)
