"""Points sent to two services on one database, one of which is killed: what was acknowledged stays, each lands once."""

import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from sqlalchemy import select, text

from phantom_core.protocol import Event, JobVariable
from services.states import ExperimentState
from services.tables import Event as EventRow
from services.tables import MetricBlock
from tests.services.fake_job import Behaviour
from tests.services.fault_bench import FROM_JOBS, FaultBench, faults
from tests.services.simulated_job import SimulatedJob
from tests.services.test_event_faults import job_of
from tests.services.test_point_writes import told

EVENTS = 2_000
TOGETHER = 4
SENDERS = 6
LONGEST_S = 240.0

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def bench(tmp_path: Path, database_url: str) -> Iterator[FaultBench]:
    with faults(tmp_path, database_url, Behaviour()) as bench:
        yield bench


class Senders:
    """Send batches in turn to both services; each goes on without the one that is gone."""

    def __init__(self, bench: FaultBench, job: SimulatedJob) -> None:
        identifier = job.assignment.experiment_id
        token = bench.head.environment_of(identifier)[JobVariable.INGEST_TOKEN]
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._urls = [service.url for service in bench.services.values()]
        self._job = job
        self._door = threading.Lock()
        self.go_on = threading.Event()
        """Set once one of the services is lost."""
        self.accepted = 0
        """Events that services said were new."""
        self.acknowledged: set[int] = set()
        """Numbers of events that services said they have."""

    def send(self, batches: Sequence[Sequence[Event]]) -> None:
        """Sends all of them, unless a service is lost on the way; the last quarter waits for that."""
        with httpx.Client(headers=self._headers, timeout=120) as client:
            for number, events in enumerate(batches):
                if number == 3 * len(batches) // 4:
                    assert self.go_on.wait(LONGEST_S)
                url = f"{self._urls[number % len(self._urls)]}/internal/v1/events"
                try:
                    answer = client.post(url, content=self._job.batch(events).model_dump_json())
                except httpx.TransportError:
                    continue
                assert answer.status_code == 200, answer.text
                with self._door:
                    self.accepted += answer.json()["accepted"]
                    self.acknowledged.update(event.seq for event in events)


def landed(bench: FaultBench) -> list[int]:
    """Numbers of the jobs' events that the database has."""
    with bench.database.read() as session:
        return sorted(session.scalars(select(EventRow.seq).where(*FROM_JOBS)))


def wait_until_all_is_written(bench: FaultBench) -> None:
    """A server finishes what a client had asked for before it was killed; SQLite's dies with the client."""
    if bench.url.startswith("sqlite"):
        return
    busy = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND state <> 'idle'"
    )

    def nobody_is_busy() -> bool:
        with bench.database.read() as session:
            number: int = session.execute(busy).scalar_one()
        return number == 0

    bench.wait_until(nobody_is_busy, "the end of what the killed service had begun")


def test_points_that_were_acknowledged_outlast_a_killed_service_and_all_land_once(bench: FaultBench) -> None:
    for name in ("a", "b"):
        bench.start(name)
    with bench.head.held("begin"):
        identifier = bench.submit()
        bench.wait_for_state(identifier, ExperimentState.STARTING)
        bench.wait_until((bench.head.folder / f"{identifier}.environment").exists, "a job that began")
        job = job_of(bench, identifier)
        events = told(job, EVENTS)
        batches = [events[begin : begin + TOGETHER] for begin in range(0, EVENTS, TOGETHER)]
        chosen = random.Random(0)
        # Each batch is sent by two, so that the same may be under way at both services.
        shares = [chosen.sample(batches, len(batches) // 3) for _ in range(SENDERS)]
        senders = Senders(bench, job)
        with ThreadPoolExecutor(SENDERS) as pool:
            sent = [pool.submit(senders.send, share) for share in shares]
            bench.wait_until(lambda: len(landed(bench)) > EVENTS // 8, "some points")
            bench.kill("a")
            assert not any(each.done() for each in sent), "it is killed in the middle"
            senders.go_on.set()
            for each in sent:
                each.result()
        wait_until_all_is_written(bench)
        before = landed(bench)
        assert len(before) == len(set(before))
        assert senders.acknowledged <= set(before)
        assert senders.accepted <= len(before)
        bench.start("a")
        again = Senders(bench, job)
        again.go_on.set()
        again.send(batches)
        assert again.accepted == EVENTS - len(before)
        assert landed(bench) == list(range(EVENTS))
        with bench.database.read() as session:
            blocks = session.execute(select(MetricBlock.seq, MetricBlock.point_count)).all()
        assert sorted((seq, count) for seq, count in blocks) == [(seq, 2) for seq in range(EVENTS)]
