"""The database, SQLite or PostgreSQL behind one interface: short reads, short writes, the schema's version.

A write on SQLite begins with BEGIN IMMEDIATE: a transaction that reads first and writes later would fail at
once, whatever the timeout, if another had written in between. On PostgreSQL, callers lock the rows that they
decide on.
"""

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, func, make_url, select
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool
from sqlalchemy.types import DateTime, TypeDecorator

from services import revisions
from services.engines import (
    BUSY_TIMEOUT_S,
    MOST_CONNECTIONS,
    WRITES,
    postgresql_engine,
    sqlite_engine,
    sqlite_file,
)
from services.errors import DatabaseError, DatabaseHeld, DatabaseUnavailable
from services.lock_holders import holder_of

_OWN = "ghostwatt_own"

Cursor = Any
"""A cursor by PEP 249."""


class UtcDateTime(TypeDecorator[datetime]):
    """An instant: aware and in UTC in Python, `timestamptz` on PostgreSQL, UTC text on SQLite."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuses a time without a zone; SQLite would store it as if it were UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone; give an aware time, such as datetime.now(UTC)")
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        """Gives the zone back that SQLite drops."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


@dataclass(frozen=True)
class PoolUsage:
    """Connections of one process."""

    in_use: int
    """Lent now."""
    idle: int
    """Open, and free."""
    limit: int
    """Most that may be open."""


class Database:
    """One database and its pool of connections; a context manager.

    Args:
        url: `sqlite:///<file>` or `postgresql+psycopg://...`. A database in memory is refused: threads
            would each see their own.

    Raises:
        DatabaseError: The URL can't be used.
    """

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        """Whether it is SQLite; PostgreSQL otherwise."""
        self.file = sqlite_file(parsed) if self.is_sqlite else None
        """SQLite's file."""
        if not self.is_sqlite and parsed.get_backend_name() != "postgresql":
            raise DatabaseError(
                f"{parsed.get_backend_name()} is not supported; use sqlite:/// or postgresql+psycopg://"
            )
        self._engine = sqlite_engine(parsed) if self.is_sqlite else postgresql_engine(parsed)
        self._writes = self._engine.execution_options(**{WRITES: True})
        # SQLite's reads see one state anyway; PostgreSQL's do from this level on.
        self._reads = (
            self._engine
            if self.is_sqlite
            else self._engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        )
        self._alone = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        # SQLite's own busy handler sleeps and retries, so writers of one process would starve each other.
        self._turn = threading.Lock() if self.is_sqlite else None

    @property
    def name(self) -> str:
        """The URL without its password."""
        return self._engine.url.render_as_string(hide_password=True)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that sees one consistent state and changes nothing; what it changes is never committed.

        Raises:
            DatabaseUnavailable: The database can't be reached.
        """
        with _translated(self.file), Session(self._reads, expire_on_commit=False, autoflush=False) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session that is committed at the end, or rolled back by an exception.

        Raises:
            DatabaseUnavailable: The database can't be reached, or stayed locked for `BUSY_TIMEOUT_S`.
        """
        with (
            _translated(self.file),
            self._in_turn(),
            Session(self._writes, expire_on_commit=False) as session,
        ):
            yield session
            session.commit()

    @contextmanager
    def cursor(self, own: Sequence[str] = (), *, in_transaction: bool = True) -> Iterator[Cursor]:
        """The SQLite driver's own cursor, for writes that must cost little.

        Args:
            own: What makes the temporary views and triggers that the caller writes by, if they are not there; a
                connection keeps them.
            in_transaction: Whether all that is done is one write transaction; else each statement is one.

        Raises:
            DatabaseUnavailable: See `write`.
        """
        assert self.is_sqlite, "another driver's errors and lost connections are SQLAlchemy's business"
        with _translated(self.file), self._in_turn(), closing(self._engine.raw_connection()) as connection:
            cursor = connection.cursor()
            try:
                made = connection.info.setdefault(_OWN, set())
                for statement in own:
                    if statement not in made:
                        cursor.execute(statement)
                        made.add(statement)
                if in_transaction:
                    cursor.execute("BEGIN IMMEDIATE")
                # Closing gives the connection back, which undoes what is not committed.
                yield cursor
                connection.commit()
            except sqlite3.OperationalError as error:
                if own:
                    # A connection that missed a table while it read its own trigger goes on missing it.
                    connection.invalidate(error)
                raise

    def execute_alone(self, statement: str, values: tuple[object, ...]) -> list[Any]:
        """Runs one statement in the driver's own notation, committed by the server itself: one way there and back.

        Returns:
            The first column of what it returns.

        Raises:
            DatabaseUnavailable: The database can't be reached, or stayed locked.
        """
        with _translated(self.file), self._in_turn(), self._alone.connect() as connection:
            return list(connection.exec_driver_sql(statement, values).scalars())

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        if self._turn is None:
            yield
            return
        if not self._turn.acquire(timeout=BUSY_TIMEOUT_S):
            assert self.file is not None, "only SQLite's writes wait for their turn"
            raise _busy(self.file, f"{self.name} has been busy for {BUSY_TIMEOUT_S:g} s; try again")
        try:
            yield
        finally:
            self._turn.release()

    def pool_usage(self) -> PoolUsage:
        """How many connections are open, without touching one."""
        pool = self._engine.pool
        assert isinstance(pool, QueuePool)
        return PoolUsage(pool.checkedout(), pool.checkedin(), MOST_CONNECTIONS)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A bare connection outside any transaction, for migrations."""
        with _translated(self.file), self._engine.connect() as connection:
            # SQLite looks for the tables that it moves in what the connection has of its own (`cursor`), too.
            while connection.info.pop(_OWN, None):
                connection.invalidate()
            yield connection

    def check(self) -> None:
        """Asks the database for an answer.

        Raises:
            DatabaseUnavailable: None came.
        """
        with self.read() as session:
            session.execute(select(1))

    def check_held(self, patience_s: float = 1.0) -> None:
        """Asks whether anything can be written; on SQLite that takes its write lock for a moment.

        Args:
            patience_s: Seconds for which others may hold it.

        Raises:
            DatabaseUnavailable: Nothing can.
        """
        if self.file is None:
            return
        # A connection of its own: a thread of this process that waits for the lock must not keep the answer back.
        with (
            _translated(self.file),
            closing(sqlite3.connect(self.file, timeout=patience_s, isolation_level=None)) as connection,
        ):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")

    def migrate(self, revision: str = "head") -> None:
        """Brings the tables to a revision; any number of processes may do so at once.

        Raises:
            DatabaseError: The tables are newer than this version knows.
        """
        if revision == "head" and self.is_at_head():
            return
        from services.schema import migrate

        migrate(self, revision)

    def revision(self) -> str | None:
        """The tables' revision; None before the first migration."""
        with self.connection() as connection:
            return revisions.current(connection)

    def is_at_head(self) -> bool:
        """Whether the tables are those of this version."""
        return self.revision() == revisions.newest()

    def close(self) -> None:
        """Closes all idle connections; safe to call twice."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def now(session: Session) -> datetime:
    """The moment by the clock that all service processes share: the database server's, or SQLite's host's."""
    if session.get_bind().dialect.name == "sqlite":
        return datetime.now(UTC)
    moment: datetime = session.execute(select(func.clock_timestamp())).scalar_one()
    return moment.astimezone(UTC)


def driver_instants(values: Sequence[datetime | str]) -> tuple[datetime, ...]:
    """A column of `UtcDateTime` as the drivers give it, for rows so many that SQLAlchemy's way with each is dear."""
    return tuple(
        [
            datetime.fromisoformat(f"{value}+00:00") if isinstance(value, str) else value.astimezone(UTC)
            for value in values
        ]
    )


@contextmanager
def _translated(file: Path | None) -> Iterator[None]:
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout) as error:
        raise _unavailable(error, file) from error
    except sqlite3.OperationalError as error:
        raise _unavailable(error, file) from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise _unavailable(error, file) from error
        raise


def _unavailable(error: Exception, file: Path | None) -> DatabaseUnavailable:
    cause = getattr(error, "orig", None) or error
    words = str(cause).strip().splitlines()
    told = f"the database did not answer: {words[0] if words else type(error).__name__}"
    # The code's lower byte is the kind of error.
    is_busy = isinstance(cause, sqlite3.Error) and cause.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
    return _busy(file, told) if is_busy and file is not None else DatabaseUnavailable(told)


def _busy(file: Path, told: str) -> DatabaseUnavailable:
    """Who waited for SQLite's write lock in vain: what to say of it."""
    holder = holder_of(file)
    if holder is None or holder.pid == os.getpid():
        return DatabaseUnavailable(told)
    return DatabaseHeld(str(holder), told)
