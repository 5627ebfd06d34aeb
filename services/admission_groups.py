"""Submissions that come at the same time share a transaction."""

from collections.abc import Sequence

from services.admission_writes import admit
from services.admissions import Admission
from services.database import Database
from services.write_groups import WriteGroups

MOST_TOGETHER = 32
"""Submissions in one transaction."""
MOST_ROWS = 2_000
"""Rows after which no other submission joins a transaction: others want to write, too."""


class AdmissionGroups(WriteGroups[Admission, bool]):
    """Tells of each submission whether it was written, and is durable; False if its key is another submission's."""

    def __init__(self, database: Database) -> None:
        """Begins.

        Args:
            database: Where to.
        """
        super().__init__(
            "admissions",
            lambda admissions: _admitted(database, admissions),
            most_together=MOST_TOGETHER,
            most_rows=MOST_ROWS,
            rows_of=lambda admission: admission.rows,
        )


def _admitted(database: Database, admissions: Sequence[Admission]) -> list[bool]:
    written = admit(database, admissions)
    return [each.id in written for each in admissions]
