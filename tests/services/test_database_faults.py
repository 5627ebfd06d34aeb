"""The database goes away under a service that works: PostgreSQL refuses everybody, SQLite is locked by another."""

import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest
from sqlalchemy import URL, create_engine, make_url, text

from services.database import Database
from services.states import ExperimentState
from tests.embedded_postgresql import embedded_postgresql, start_again
from tests.postgresql_sessions import end_sessions
from tests.services.fake_job import Behaviour
from tests.services.fault_bench import SUCCEEDED, FaultBench, faults

AWAY_S = 4.0
SILENCE_S = 20.0
LONG_S = 25.0
"""Longer than a write waits, than a lease lasts and than jobs may be silent."""

pytestmark = pytest.mark.timeout(900)  # services are started several times, on machines that may be busy


@pytest.fixture
def bench(tmp_path: Path, database_url: str) -> Iterator[FaultBench]:
    with faults(tmp_path, database_url, Behaviour(pause_s=0.02)) as bench:
        yield bench


@pytest.mark.parametrize("away_s", [AWAY_S, LONG_S])
def test_what_happens_while_the_database_is_away_lands_when_it_is_back(
    bench: FaultBench, away_s: float
) -> None:
    """Experiments are queued, start, run and end meanwhile."""
    silence_s = 60 if away_s == AWAY_S else SILENCE_S
    bench.start(GHOSTWATT_RAY_MAX_ACTIVE="2", GHOSTWATT_SILENCE_DEADLINE_S=f"{silence_s:g}")
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
    assert sorted(bench.started()) == sorted(ids), "no attempt was lost by it"


def test_a_postgresql_that_crashes_and_recovers_has_all_that_was_acknowledged(tmp_path: Path) -> None:
    """A server of this test's own, that keeps what it commits as a real one does, is killed twice in mid-run."""
    with embedded_postgresql() as server:
        url = make_url(server.get_uri()).set(drivername="postgresql+psycopg").render_as_string(False)
        with Database(url) as database:
            database.migrate()
        with faults(tmp_path, url, Behaviour(pause_s=0.02)) as bench:
            bench.start()
            ids = [bench.submit() for _ in range(4)]
            for number in (3, 20):
                bench.wait_until(partial(_have_landed, bench, ids, number), "events")
                postmaster = psutil.Process(server.get_pid())
                os.kill(postmaster.pid, signal.SIGQUIT)
                psutil.wait_procs([postmaster], timeout=60)
                time.sleep(2)
                start_again(server)
            assert bench.settled(ids) == [SUCCEEDED] * 4
            assert sorted(bench.started()) == sorted(ids)


def _have_landed(bench: FaultBench, identifiers: list[str], number: int) -> bool:
    return sum(map(bench.landed, identifiers)) > number


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
            try:
                end_sessions(connection, url.database)
                yield
            finally:
                connection.execute(text(f'ALTER DATABASE "{url.database}" ALLOW_CONNECTIONS true'))
    finally:
        administrator.dispose()
