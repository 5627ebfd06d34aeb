"""A real service gets a job's events twice, in any order and from several senders at once."""

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, select

from phantom_core.protocol import Assignment, Event, EventBatch, JobVariable
from services.states import ExperimentState
from services.tables import Event as EventRow
from services.tables import MetricBlock, Window
from tests.services.fake_job import Behaviour
from tests.services.fault_bench import FROM_JOBS, FaultBench, faults
from tests.services.rows import snapshot
from tests.services.simulated_job import SimulatedJob

SENDERS = 6

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def bench(tmp_path: Path, database_url: str) -> Iterator[FaultBench]:
    with faults(tmp_path, database_url, Behaviour()) as bench:
        yield bench


def speaking(bench: FaultBench, identifier: str, batches: Sequence[Sequence[Event]], senders: int) -> None:
    """Sends batches as the job of an experiment would."""
    service = bench.services["a"]
    headers = {"Authorization": f"Bearer {bench.head.environment_of(identifier)[JobVariable.INGEST_TOKEN]}"}

    def send(events: Sequence[Event]) -> None:
        batch = EventBatch(experiment_id=identifier, events=tuple(events))
        response = httpx.post(
            f"{service.url}/internal/v1/events",
            content=batch.model_dump_json(),
            headers=headers | {"Content-Type": "application/json"},
            timeout=120,
        )
        assert response.status_code == 200, response.text

    with ThreadPoolExecutor(senders) as pool:
        list(pool.map(send, batches))


def job_of(bench: FaultBench, identifier: str) -> SimulatedJob:
    service = bench.services["a"]
    token = bench.head.environment_of(identifier)[JobVariable.INGEST_TOKEN]
    response = httpx.get(
        f"{service.url}/internal/v1/experiments/{identifier}/assignment",
        headers={"Authorization": f"Bearer {token}"},
        timeout=60,
    ).raise_for_status()
    return SimulatedJob(Assignment.model_validate_json(response.content))


def test_events_that_come_twice_shuffled_and_at_once_leave_what_orderly_ones_do(bench: FaultBench) -> None:
    bench.start(GHOSTWATT_RAY_MAX_ACTIVE="2")
    with bench.head.held("begin"):
        orderly, shuffled = bench.submit(), bench.submit()
        for identifier in (orderly, shuffled):
            bench.wait_for_state(identifier, ExperimentState.STARTING)
            bench.wait_until((bench.head.folder / f"{identifier}.environment").exists, "a job that began")
        events = list(job_of(bench, orderly).everything())
        speaking(bench, orderly, [events[start : start + 5] for start in range(0, len(events), 5)], senders=1)
        assert bench.state(orderly) == "succeeded"

        chance = random.Random(8411)
        events = [*job_of(bench, shuffled).everything()]
        twice = events * 2
        chance.shuffle(twice)
        speaking(bench, shuffled, [twice[start : start + 7] for start in range(0, len(twice), 7)], SENDERS)
        assert bench.state(shuffled) == "succeeded"
        for identifier in (orderly, shuffled):
            assert bench.landed(identifier) == len({(e.subject_id, e.source, e.seq) for e in events})
    assert snapshot(bench.database, shuffled) == snapshot(bench.database, orderly)
    with bench.database.read() as session:
        of_jobs = session.execute(select(func.count()).select_from(EventRow).where(*FROM_JOBS)).scalar_one()
        assert of_jobs > 0
        assert session.execute(select(func.count()).select_from(MetricBlock)).scalar_one() > 0
        assert session.execute(select(func.count()).select_from(Window)).scalar_one() > 0
