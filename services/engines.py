"""Engines of both databases: pools, what a connection is set up with, and how a transaction begins."""

import select as polling
import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import InvalidatePoolError

from services.errors import DatabaseError

BUSY_TIMEOUT_S = 10.0
"""Seconds that a SQLite write waits for another process's."""

POOLED_CONNECTIONS = 10
"""Connections of one process that stay open."""
MOST_CONNECTIONS = 20
"""Connections of one process at most."""

QUIET_S = 30.0
"""Seconds after which a connection is tried before it is lent, though nothing speaks against it."""

IDLE_IN_TRANSACTION_S = 20.0
"""Seconds for which a transaction may stand still between two statements before PostgreSQL undoes it and lets go of its
locks: its process is frozen, or its host has died. Far longer than what is computed in one on a busy machine, shorter
than a lease lasts, so that whoever takes over finds no lock."""
KEEPALIVE_AFTER_S = 15
"""Seconds of silence after which both ends of a connection to PostgreSQL ask whether the other lives."""
KEEPALIVE_EVERY_S = 5
"""Seconds between two such questions."""
KEEPALIVES = 4
"""Questions without an answer after which the connection counts as dead."""
UNANSWERED_S = KEEPALIVE_AFTER_S + KEEPALIVES * KEEPALIVE_EVERY_S
"""The same for what was sent and not acknowledged."""

WRITES = "ghostwatt_writes"
"""Execution option of a connection: whether its transactions write, and so begin as writers on SQLite."""


def sqlite_file(url: URL) -> Path:
    """The file that a URL names.

    Raises:
        DatabaseError: It names none, or more than a file.
    """
    if not url.database or url.database == ":memory:" or url.query:
        raise DatabaseError(
            f"{url.render_as_string()} names no plain file; use sqlite:///<path>, which all threads share"
        )
    return Path(url.database).absolute()


def sqlite_engine(url: URL) -> Engine:
    """Connections that wait for each other's writes, and begin transactions as `WRITES` says.

    Raises:
        DatabaseError: The URL names no plain file.
    """
    file = sqlite_file(url)
    file.parent.mkdir(parents=True, exist_ok=True)
    # It holds specs, results and hashes of keys: its owner's business. SQLite gives its log the same mode.
    file.touch(mode=0o600)
    engine = create_engine(
        url.set(database=str(file)),
        pool_size=POOLED_CONNECTIONS,
        max_overflow=MOST_CONNECTIONS - POOLED_CONNECTIONS,
        pool_timeout=BUSY_TIMEOUT_S,
        # The one used last: each connection has a cache of its own, and a long answer's 30 MB are in that one.
        pool_use_lifo=True,
        connect_args={"timeout": BUSY_TIMEOUT_S},
    )

    @event.listens_for(engine, "connect")
    def set_up(dbapi: Any, _record: object) -> None:
        # The driver must begin no transaction by itself: `begin` below says which kind.
        dbapi.isolation_level = None
        cursor = dbapi.cursor()
        keep_a_log_ahead(cursor)
        for pragma in (
            "synchronous = FULL",
            "foreign_keys = ON",
            f"busy_timeout = {round(BUSY_TIMEOUT_S * 1_000)}",
            "cache_size = -4096",  # KiB for each connection of the pool; the system caches the file for all of them
            "temp_store = MEMORY",
            "journal_size_limit = 67108864",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def keep_a_log_ahead(cursor: sqlite3.Cursor) -> None:
    """Makes the file keep a write-ahead log, if it does not yet.

    Of several that open a new file at one time, SQLite refuses all that find it half made, without waiting.

    Raises:
        sqlite3.OperationalError: The file stayed locked for `BUSY_TIMEOUT_S`, or can't be used at all.
    """
    end_s = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() > end_s:
                raise
            time.sleep(0.01)
            continue
        return


def postgresql_engine(url: URL) -> Engine:
    """Connections that are tried before they are lent where the server may have let go of them."""
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"),
        pool_size=POOLED_CONNECTIONS,
        max_overflow=MOST_CONNECTIONS - POOLED_CONNECTIONS,
        pool_timeout=BUSY_TIMEOUT_S,
        connect_args={
            "connect_timeout": 10,
            "application_name": "ghostwatt",
            "keepalives": 1,
            "keepalives_idle": KEEPALIVE_AFTER_S,
            "keepalives_interval": KEEPALIVE_EVERY_S,
            "keepalives_count": KEEPALIVES,
            "tcp_user_timeout": UNANSWERED_S * 1_000,
        },
    )

    @event.listens_for(engine, "connect")
    def set_up(dbapi: Any, record: Any) -> None:
        # Once, not in every transaction: that would be one more way to the server and back for each.
        settings = {
            "lock_timeout": f"{round(BUSY_TIMEOUT_S * 1_000)}ms",
            "idle_in_transaction_session_timeout": f"{round(IDLE_IN_TRANSACTION_S * 1_000)}ms",
            # The server's end: what a host that lost its power held goes no sooner than the server notices.
            "tcp_keepalives_idle": f"{KEEPALIVE_AFTER_S}s",
            "tcp_keepalives_interval": f"{KEEPALIVE_EVERY_S}s",
            "tcp_keepalives_count": f"{KEEPALIVES}",
            "tcp_user_timeout": f"{UNANSWERED_S}s",
            # What is read here takes milliseconds by an index; workers take that long to start, and cores from others.
            # Where blocks of power were joined and statistics are of before, the planner would scan with them.
            "max_parallel_workers_per_gather": "0",
        }
        parts = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in settings.items())
        dbapi.execute(f"SELECT {parts}")
        dbapi.commit()
        record.info["lent_s"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def lend(dbapi: Any, record: Any, _proxy: object) -> None:
        # A server that restarted leaves dead connections in the pool. It has said so on each: only where something
        # waits to be read, or where a network may have forgotten the connection, is it worth asking.
        moment_s = time.monotonic()
        if (moment_s - record.info["lent_s"] > QUIET_S or _has_news(dbapi)) and not _answers(engine, dbapi):
            raise InvalidatePoolError("the server closed the connection")
        record.info["lent_s"] = moment_s

    return engine


def _has_news(dbapi: Any) -> bool:
    """Whether the server has said something unasked, the end of the connection among it."""
    if dbapi.closed:
        return True
    poll = polling.poll()
    poll.register(dbapi.fileno(), polling.POLLIN)
    return bool(poll.poll(0))


def _answers(engine: Engine, dbapi: Any) -> bool:
    try:
        return engine.dialect.do_ping(dbapi)
    except engine.dialect.loaded_dbapi.Error:
        return False
