"""What follows an experiment's end, once that is stored: its comparison, and its deletion if somebody asked for it."""

import logging

from services import comparisons, deletion
from services.database import Database

log = logging.getLogger(__name__)


def after_the_end(db: Database, experiment_id: str) -> None:
    """Stores the comparison and carries out a deletion.

    Never raises: the end itself is stored, and whoever told of it must not be told that it is not. What fails here is
    tried again by `housekeeping.sweep`.
    """
    for work in (comparisons.store, deletion.delete_if_asked):
        try:
            work(db, experiment_id)
        except Exception:
            log.exception("%s has ended, but what follows failed; it is tried again", experiment_id)
