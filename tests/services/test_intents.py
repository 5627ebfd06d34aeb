"""A cancel or a delete is kept as an intent: it works from every state, and outlives the service that took it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select

from services.columns import Base
from services.states import ExperimentState
from services.tables import Experiment
from tests.services.fake_job import Behaviour
from tests.services.fault_bench import FaultBench, faults

pytestmark = pytest.mark.timeout(900)  # services are started several times, on machines that may be busy


@pytest.fixture
def bench(tmp_path: Path, database_url: str) -> Iterator[FaultBench]:
    with faults(tmp_path, database_url, Behaviour(pause_s=0.02)) as bench:
        yield bench


def in_every_state(bench: FaultBench) -> dict[str, ExperimentState]:
    """Experiments that run, start, are being handed over, and wait; jobs wait at their gates."""
    bench.start(GHOSTWATT_RAY_MAX_ACTIVE="3")
    running = bench.submit()
    bench.wait_for_state(running, ExperimentState.RUNNING)
    (bench.head.folder / "hold-begin").touch()
    starting = bench.submit()
    bench.wait_for_state(starting, ExperimentState.STARTING)
    bench.head.control(slow_s=6, submit_first=True)
    leased = bench.submit()
    bench.wait_for_state(leased, ExperimentState.LEASED)
    queued = bench.submit()
    wanted = {
        running: ExperimentState.RUNNING,
        starting: ExperimentState.STARTING,
        leased: ExperimentState.LEASED,
        queued: ExperimentState.QUEUED,
    }
    assert {identifier: bench.state(identifier) for identifier in wanted} == wanted
    return wanted


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("action", ["cancel", "delete"])
def test_it_works_from_every_state(bench: FaultBench, action: str, dies: bool) -> None:
    (bench.head.folder / "hold-running").touch()
    ids = list(in_every_state(bench))
    service = bench.services["a"]
    for identifier in ids:
        address = f"/v1/experiments/{identifier}"
        service.post(f"{address}/cancel") if action == "cancel" else service.delete(address)
    if dies:
        bench.kill()
    bench.head.control(slow_s=0)
    if dies:
        bench.start(GHOSTWATT_RAY_MAX_ACTIVE="3")
    if action == "cancel":
        assert bench.settled(ids) == [("cancelled", "cancelled_by_user")] * len(ids)
        return
    bench.wait_until(lambda: _count(bench, Experiment) == 0, "deleted experiments")
    bench.wait_until(lambda: not bench.head.running(), "end of all jobs")
    bench.wait_until(lambda: not bench.groups(), "no worker group that is thought to live")
    kept = {"alembic_version", "heartbeats", "queue_turns", "switches", "idempotency_keys"}
    left = {
        table.name: count
        for table in Base.metadata.sorted_tables
        if table.name not in kept and (count := _rows(bench, table.name))
    }
    assert left == {}


def _count(bench: FaultBench, table: type[Base]) -> int:
    with bench.database.read() as session:
        return session.execute(select(func.count()).select_from(table)).scalar_one()


def _rows(bench: FaultBench, name: str) -> int:
    with bench.database.read() as session:
        return session.execute(select(func.count()).select_from(Base.metadata.tables[name])).scalar_one()
