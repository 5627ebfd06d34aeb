"""A service process that is stopped in the middle of a transaction: `python -m tests.services.frozen_process URL`.

It says `holds` before, and when it goes on what became of its transaction and of its lease.
"""

import os
import signal
import sys

from sqlalchemy import select

from services import engines, leases
from services.database import Database
from services.errors import DatabaseUnavailable
from services.holds import held
from services.tables import Experiment

IDLE_IN_TRANSACTION_S = 20.0
"""As `services.engines` has it."""


def main(url: str) -> None:
    engines.IDLE_IN_TRANSACTION_S = IDLE_IN_TRANSACTION_S
    with Database(url) as db:
        lease = leases.claim(db, "frozen", 1.0)
        assert lease is not None
        try:
            with db.write() as session:
                assert held(session, lease) is not None
                print("holds", flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)
                session.execute(select(Experiment.id))
            print("kept")
        except DatabaseUnavailable:
            print("undone")
        print("holds" if leases.renew(db, lease, 1.0) else "lost", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
