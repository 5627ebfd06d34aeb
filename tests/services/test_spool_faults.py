"""The disk that jobs write their events to is full: for a while, and until their end."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from services.states import ExperimentState
from tests.services.fake_job import Behaviour
from tests.services.fault_bench import SUCCEEDED, FaultBench, faults

pytestmark = pytest.mark.timeout(900)  # services are started several times, on machines that may be busy


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path, database_url: str) -> Iterator[FaultBench]:
    with faults(tmp_path, database_url, Behaviour(pause_s=0.02, **getattr(request, "param", {}))) as bench:
        yield bench


def test_what_is_said_while_the_disk_is_full_lands_when_there_is_room(bench: FaultBench) -> None:
    bench.start()
    with bench.head.held("running"):
        identifier = bench.submit()
        bench.wait_for_state(identifier, ExperimentState.RUNNING)
    bench.wait_until(lambda: bench.landed(identifier) > 5, "some events")
    with bench.head.disk_full():
        before = bench.spooled([identifier])
        time.sleep(3)
        assert bench.spooled([identifier]) == before, "nothing reaches the disk"
    assert bench.settled([identifier]) == [SUCCEEDED]
    assert bench.started() == [identifier]


@pytest.mark.parametrize("bench", [{"room_s": 5.0}], indirect=True)
def test_a_job_that_could_not_write_down_what_it_did_is_made_again_and_says_why(bench: FaultBench) -> None:
    service = bench.start()
    with ExitStack() as faults_of_disk:
        with bench.head.held("running"):
            identifier = bench.submit()
            bench.wait_for_state(identifier, ExperimentState.RUNNING)
            # Left last to first: the disk has room before the next attempt begins.
            faults_of_disk.enter_context(bench.head.held("begin"))
            faults_of_disk.enter_context(bench.head.disk_full())
        bench.wait_until(lambda: bench.attempt(identifier) == 2, "another attempt")
    assert bench.settled([identifier]) == [SUCCEEDED]
    lost, made = service.get(f"/v1/experiments/{identifier}")["attempts"]
    assert (lost["reason"], made["reason"]) == ("worker_lost", None)
    assert "events could not be written to" in lost["message"]
    assert "File too large" in lost["message"]
