"""The schema's version: Alembic, configured in code, so that an installed package needs no ini file.

Migrations run in one transaction under a lock (an advisory lock on PostgreSQL, a lock on a file beside the
database on SQLite), so that any number of processes may start at once.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import Connection, text

from services import revisions
from services.database import Database
from services.errors import DatabaseError

_ADVISORY_LOCK = 0x6768_6F73_7477_6174
"""Number of PostgreSQL's lock: the letters `ghostwat`."""


def migrate(database: Database, revision: str = "head") -> None:
    """Brings the tables to a revision, up or down.

    Args:
        database: Which.
        revision: Its name, `head`, or `base` for no tables at all.

    Raises:
        DatabaseError: There is no such revision, or the tables are at one that this version doesn't know.
    """
    with _alone(database) as connection:
        current = revisions.current(connection)
        connection.rollback()
        config = _config()
        script = ScriptDirectory.from_config(config)
        known = [step.revision for step in script.walk_revisions()][::-1]
        if current is not None and current not in known:
            raise DatabaseError(
                f"{database.name} is at revision {current!r}, which this version of Ghostwatt does not know; "
                "start the newer version that made it"
            )
        target = revisions.newest() if revision == "head" else revision
        if target != "base" and target not in known:
            raise DatabaseError(f"there is no revision {target!r}; the revisions are {', '.join(known)}")
        reached = -1 if current is None else known.index(current)
        wanted = -1 if target == "base" else known.index(target)
        if reached == wanted:
            return
        config.attributes["connection"] = connection
        try:
            (command.upgrade if wanted > reached else command.downgrade)(config, target)
        except CommandError as error:
            raise DatabaseError(f"{database.name} can't be migrated to {target!r}: {error}") from error


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(revisions.folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


@contextmanager
def _alone(database: Database) -> Iterator[Connection]:
    if database.file is not None:
        # A separate file: SQLite drops its own locks if a process closes any handle on the database.
        lock = database.file.with_name(database.file.name + ".migration-lock")
        with lock.open("w") as handle, database.connection() as connection:
            fcntl.flock(handle, fcntl.LOCK_EX)
            connection.rollback()
            try:
                yield connection
            finally:
                connection.rollback()
        return
    with database.connection() as connection:
        # Another process's migration, and rows to rewrite, may take long.
        connection.execute(text("SET lock_timeout = 0"))
        connection.execute(text("SET idle_in_transaction_session_timeout = '10min'"))
        # Held by the connection, not by a transaction, since the migration commits its own.
        connection.execute(text("SELECT pg_advisory_lock(:number)"), {"number": _ADVISORY_LOCK})
        connection.commit()
        try:
            yield connection
        finally:
            connection.rollback()
            connection.execute(text("SELECT pg_advisory_unlock(:number)"), {"number": _ADVISORY_LOCK})
            connection.commit()
            # Its settings are not those of the others.
            connection.invalidate()
