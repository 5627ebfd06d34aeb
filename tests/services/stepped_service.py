"""The service on a host whose wall clock is stepped: `python -m tests.services.stepped_service serve`.

The file that STEPPED_BY names holds the seconds by which the clock is off; the service sees what is written there at
once, as it would see a step. Only SQLite goes by the host's clock.
"""

import os
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import services.database

_FILE = Path(os.environ["STEPPED_BY"])


class SteppedClock(datetime):
    """`datetime` as that host has it."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + timedelta(seconds=float(_FILE.read_text()))


if __name__ == "__main__":
    services.database.datetime = SteppedClock  # type: ignore[attr-defined]
    from api.__main__ import commands

    commands()
