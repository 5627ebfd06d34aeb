"""The database goes away under a service that works: PostgreSQL refuses everybody, SQLite is locked by another."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine, make_url, text

from services.states import ExperimentState
from tests.services.fake_job import Behaviour
from tests.services.fault_bench import SUCCEEDED, FaultBench, faults

AWAY_S = 4.0
LONG_S = 15.0
"""Longer than a write waits, and than a lease lasts."""


@pytest.fixture
def bench(tmp_path: Path, database_url: str) -> Iterator[FaultBench]:
    with faults(tmp_path, database_url, Behaviour(pause_s=0.02)) as bench:
        yield bench


@pytest.mark.parametrize("away_s", [AWAY_S, LONG_S])
def test_what_happens_while_the_database_is_away_lands_when_it_is_back(
    bench: FaultBench, away_s: float
) -> None:
    """Experiments are queued, start, run and end meanwhile."""
    bench.start(GHOSTWATT_RAY_MAX_ACTIVE="2", GHOSTWATT_SILENCE_DEADLINE_S="10")
    with bench.head.held("running"):
        ids = [bench.submit() for _ in range(3)]
        for identifier in ids[:2]:
            bench.wait_for_state(identifier, ExperimentState.RUNNING)
        bench.database.close()
        with away(bench.url):
            time.sleep(1)
            for gate in bench.head.folder.glob("hold-running"):
                gate.rename(gate.with_name("was-held"))
            time.sleep(away_s)
        (bench.head.folder / "was-held").rename(bench.head.folder / "hold-running")
    assert bench.settled(ids) == [SUCCEEDED] * 3
    assert sorted(bench.head.told()["submissions"]) == sorted(ids), "no attempt was lost by it"


@contextmanager
def away(url: str) -> Iterator[None]:
    """Nobody can write, and with PostgreSQL nobody can connect."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        with closing(sqlite3.connect(str(parsed.database), timeout=60, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            yield
            other.execute("ROLLBACK")
        return
    with _refusing_connections(parsed):
        yield


@contextmanager
def _refusing_connections(url: URL) -> Iterator[None]:
    administrator = create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    try:
        with administrator.connect() as connection:
            connection.execute(text(f'ALTER DATABASE "{url.database}" ALLOW_CONNECTIONS false'))
            connection.execute(
                text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"),
                {"name": url.database},
            )
            try:
                yield
            finally:
                connection.execute(text(f'ALTER DATABASE "{url.database}" ALLOW_CONNECTIONS true'))
    finally:
        administrator.dispose()
