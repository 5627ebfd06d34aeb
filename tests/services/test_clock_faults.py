"""The wall clock is stepped by an hour while experiments wait, start, run, and lose their service.

It is the service's clock and, with PostgreSQL, also the server's, which all services of a database go by.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import make_url

from services.database import Database, now
from services.states import ExperimentState
from tests.embedded_postgresql import embedded_postgresql
from tests.services.fake_job import Behaviour
from tests.services.fault_bench import SUCCEEDED, FaultBench, faults
from tests.services.stepped_clock import SteppedClock, stepped_clock

STEPS_S = [3_600, -3_600]

pytestmark = pytest.mark.timeout(900)  # services are started several times, on machines that may be busy


@pytest.fixture
def clock() -> Iterator[SteppedClock]:
    with stepped_clock() as clock:
        yield clock


@pytest.fixture(params=["sqlite", "postgresql"])
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, migrated_sqlite: Path, clock: SteppedClock
) -> Iterator[FaultBench]:
    behaviour = Behaviour(pause_s=0.02)
    if request.param == "sqlite":
        file = tmp_path / "ghostwatt.sqlite3"
        file.write_bytes(migrated_sqlite.read_bytes())
        with faults(tmp_path, f"sqlite:///{file}", behaviour) as bench:
            yield bench
        return
    with clock.inherited():
        server = embedded_postgresql()
        running = server.__enter__()
    try:
        url = make_url(running.get_uri()).set(drivername="postgresql+psycopg").render_as_string(False)
        with Database(url) as database:
            database.migrate()
        with faults(tmp_path, url, behaviour) as bench:
            yield bench
    finally:
        server.__exit__(None, None, None)


def test_the_clock_is_stepped_under_python_and_under_postgresql(
    bench: FaultBench, clock: SteppedClock
) -> None:
    """What the other tests rest on."""
    code = "import datetime, time; time.sleep(0.1); print(time.time(), datetime.datetime.now().timestamp())"
    for step_s in STEPS_S:
        clock.step(step_s)
        done = subprocess.run(
            [sys.executable, "-c", code], env=clock.environment, capture_output=True, text=True, check=True
        )
        moments = [float(each) for each in done.stdout.split()]
        if bench.url.startswith("postgresql"):
            with bench.database.read() as session:
                moments.append(now(session).timestamp())
        for moment in moments:
            assert moment - datetime.now(UTC).timestamp() == pytest.approx(step_s, abs=60)


@pytest.mark.parametrize("step_s", STEPS_S)
def test_a_stepped_clock_ends_and_restarts_nothing(
    bench: FaultBench, clock: SteppedClock, step_s: int
) -> None:
    bench.start(**clock.environment)
    deadlines = {"scheduling_deadline_s": 600, "deadline_s": 1_800}
    with bench.head.held("running"):
        with bench.head.held("begin"):
            starting = bench.submit(resources=deadlines)
            bench.wait_for_state(starting, ExperimentState.STARTING)
            clock.step(step_s / 2)
            bench.wait_for_renewal(starting)
        running = bench.submit(resources=deadlines)
        for identifier in (starting, running):
            bench.wait_for_state(identifier, ExperimentState.RUNNING)
        clock.step(step_s)
        for identifier in (starting, running):
            bench.wait_for_renewal(identifier)
    queued = bench.submit(resources=deadlines)
    assert bench.settled([starting, running, queued]) == [SUCCEEDED] * 3
    assert bench.started() == [starting, running, queued]


@pytest.mark.parametrize("step_s", STEPS_S)
def test_a_stepped_clock_does_not_keep_what_a_dead_service_held(
    bench: FaultBench, clock: SteppedClock, step_s: int
) -> None:
    bench.start(**clock.environment)
    with bench.head.held("running"):
        identifier = bench.submit()
        bench.wait_for_state(identifier, ExperimentState.RUNNING)
        bench.kill()
    clock.step(step_s)
    bench.start(**clock.environment)
    assert bench.settled([identifier]) == [SUCCEEDED]
    assert bench.started() == [identifier]


def test_a_clock_that_is_set_back_does_not_keep_what_was_given_back(
    bench: FaultBench, clock: SteppedClock
) -> None:
    bench.start(**clock.environment)
    bench.head.control(submission_status=500)
    identifier = bench.submit()
    bench.wait_for_state(identifier, ExperimentState.LEASED)
    bench.services.pop("a").end(signal.SIGTERM)
    assert bench.state(identifier) == ExperimentState.QUEUED
    clock.step(-3_600)
    bench.head.control(submission_status=200)
    bench.start(**clock.environment)
    assert bench.settled([identifier]) == [SUCCEEDED]
