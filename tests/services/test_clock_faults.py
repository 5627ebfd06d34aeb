"""The host's wall clock is stepped by an hour while experiments wait, start, run, and lose their service."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.states import ExperimentState
from tests.services.fake_job import Behaviour
from tests.services.fault_bench import SUCCEEDED, FaultBench, faults

MODULE = "tests.services.stepped_service"

pytestmark = pytest.mark.timeout(900)  # services are started several times, on machines that may be busy


@pytest.fixture
def bench(tmp_path: Path, migrated_sqlite: Path) -> Iterator[FaultBench]:
    file = tmp_path / "ghostwatt.sqlite3"
    file.write_bytes(migrated_sqlite.read_bytes())
    (tmp_path / "stepped").write_text("0")
    with faults(tmp_path, f"sqlite:///{file}", Behaviour(pause_s=0.02)) as bench:
        yield bench


@pytest.mark.parametrize("step_s", [3_600, -3_600])
def test_a_stepped_clock_ends_and_restarts_nothing(bench: FaultBench, step_s: int) -> None:
    file = bench.folder / "stepped"
    bench.start(module=MODULE, STEPPED_BY=str(file))
    deadlines = {"scheduling_deadline_s": 600, "deadline_s": 1_800}
    with bench.head.held("begin"):
        starting = bench.submit(resources=deadlines)
        bench.wait_for_state(starting, ExperimentState.STARTING)
        file.write_text(str(step_s / 2))
        bench.wait_for_renewal(starting)
    with bench.head.held("running"):
        running = bench.submit(resources=deadlines)
        for identifier in (starting, running):
            bench.wait_for_state(identifier, ExperimentState.RUNNING)
        file.write_text(str(step_s))
        for identifier in (starting, running):
            bench.wait_for_renewal(identifier)
    queued = bench.submit(resources=deadlines)
    assert bench.settled([starting, running, queued]) == [SUCCEEDED] * 3
    assert bench.head.told()["submissions"] == [starting, running, queued]


@pytest.mark.parametrize("step_s", [3_600, -3_600])
def test_a_stepped_clock_does_not_keep_what_a_dead_service_held(bench: FaultBench, step_s: int) -> None:
    file = bench.folder / "stepped"
    bench.start(module=MODULE, STEPPED_BY=str(file))
    with bench.head.held("running"):
        identifier = bench.submit()
        bench.wait_for_state(identifier, ExperimentState.RUNNING)
        bench.kill()
    file.write_text(str(step_s))
    bench.start(module=MODULE, STEPPED_BY=str(file))
    assert bench.settled([identifier]) == [SUCCEEDED]
    assert bench.head.told()["submissions"] == [identifier]
