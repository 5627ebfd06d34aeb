"""Databases for every room's tests: SQLite always, and a real PostgreSQL that the suite starts for itself."""

import os
import shutil
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import pytest
from sqlalchemy import URL, Connection, create_engine, make_url, text

from services.database import Database
from services.tables import Base
from tests.embedded_postgresql import embedded_postgresql
from tests.postgresql_sessions import end_sessions

# A machine that is busy with something else is no fault of the code.
hypothesis.settings.register_profile(
    "ghostwatt", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("ghostwatt")

# A shell ignores ctrl-c for what it starts in the background, programs inherit that, and tests press ctrl-c.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[URL]:
    """A PostgreSQL server: the one that `DATABASE_URL` names, else one of the suite's own."""
    given = os.environ.get("DATABASE_URL", "")
    if given.startswith("postgresql"):
        yield make_url(given).set(drivername="postgresql+psycopg")
        return
    with embedded_postgresql() as server:
        url = make_url(server.get_uri()).set(drivername="postgresql+psycopg")
        with _administrator(url) as connection:
            # What a test wrote need not outlive the machine.
            for setting in ("fsync", "full_page_writes", "synchronous_commit"):
                connection.execute(text(f"ALTER SYSTEM SET {setting} = off"))
            connection.execute(text("SELECT pg_reload_conf()"))
        yield url


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with all tables, to copy: quicker than migrating for every test."""
    file = tmp_path_factory.mktemp("sqlite") / "migrated.sqlite3"
    with Database(f"sqlite:///{file}") as database:
        database.migrate()
    return file


@pytest.fixture(scope="session")
def migrated_postgresql(postgresql_server: URL) -> Iterator[URL]:
    """A PostgreSQL database with all tables, emptied after every test: quicker than making one for each."""
    with _temporary_database(postgresql_server) as url:
        with Database(url.render_as_string(hide_password=False)) as database:
            database.migrate()
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of each kind without any tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/ghostwatt.sqlite3"
        return
    with _temporary_database(request.getfixturevalue("postgresql_server")) as url:
        yield url.render_as_string(hide_password=False)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of each kind with all tables and no rows."""
    if request.param == "sqlite":
        file = tmp_path / "ghostwatt.sqlite3"
        shutil.copyfile(request.getfixturevalue("migrated_sqlite"), file)
        yield f"sqlite:///{file}"
        return
    url: URL = request.getfixturevalue("migrated_postgresql")
    yield url.render_as_string(hide_password=False)
    with _administrator(url) as connection:
        # A process that a test killed may still hold locks.
        end_sessions(connection, url.database)
        tables = ", ".join(Base.metadata.tables)
        connection.execute(text(f"TRUNCATE {tables} RESTART IDENTITY CASCADE"))


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """An open database of each kind with all tables and no rows."""
    with Database(database_url) as database:
        yield database


@pytest.fixture
def sqlite_database(migrated_sqlite: Path, tmp_path: Path) -> Iterator[Database]:
    """An open SQLite database with all tables and no rows, for tests that are about something else."""
    file = tmp_path / "ghostwatt.sqlite3"
    shutil.copyfile(migrated_sqlite, file)
    with Database(f"sqlite:///{file}") as database:
        yield database


@contextmanager
def _administrator(url: URL) -> Iterator[Connection]:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


@contextmanager
def _temporary_database(server: URL) -> Iterator[URL]:
    name = f"ghostwatt_test_{uuid.uuid4().hex}"
    with _administrator(server) as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield server.set(database=name)
    with _administrator(server) as connection:
        end_sessions(connection, name)
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
