"""A process that others left on a board: waited for, told, and never in an energy that counts.

Driver, boards and process lists are the compiled stub's, under the unmodified binding; ranks, meters, sampler and
spool are the job's own code in processes of their own; the stranger is a real process.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from phantom_core.protocol import Event, EventBatch, ExperimentFinished, Progress, Window
from services import comparisons, experiments, ingest, runs
from services.assignments import assignment
from services.database import Database
from services.views import ExperimentDetail
from tests.nvml_stub.harness import SCRIPT_VARIABLE, NvmlStub, StubBoard, StubScript, build_stub
from tests.ray_jobs.boards_job import said, start_ranks
from tests.running import free_port, wait_until
from tests.services.simulated_job import Source, begun, spec

pytestmark = pytest.mark.timeout(600)

BOARDS = ("GPU-11111111-1111-1111-1111-111111111111", "GPU-22222222-2222-2222-2222-222222222222")
ENDED_S = 240.0
PERIOD_S = 0.02
"""Of the boards' counters: a training window is some tenths of a second long."""
SPEC = spec(
    training={"batch_size": 64, "evaluation_interval": 400, "stop": {"kind": "steps", "steps": 400}},
    arms=[
        {"strategy": "tensor", "name": "tensor", "world_size": 2},
        {"strategy": "block_diagonal", "name": "apart", "world_size": 2},
    ],
    measurement={"rounds": 1, "minimum_window_s": 1.5, "idle_baseline_s": 1.0},
)


@dataclass
class Job:
    """A job on two boards, the second of which somebody else is on."""

    experiment_id: str
    folder: Path
    stranger: subprocess.Popen[bytes]

    def messages(self) -> list[str]:
        return [event.payload.message for event in said(self.folder) if isinstance(event.payload, Progress)]

    def tell(self) -> str:
        return "".join(file.read_text() for file in sorted(self.folder.glob("rank-*.log")))


@pytest.fixture(scope="module")
def nvml_stub(tmp_path_factory: pytest.TempPathFactory) -> NvmlStub:
    return build_stub(tmp_path_factory.mktemp("nvml stub"))


@contextmanager
def job(
    database: Database, folder: Path, stub: NvmlStub, monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> Iterator[Job]:
    """Starts it; leaves when its ranks have made all runs."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stub.folder))
    monkeypatch.setenv(SCRIPT_VARIABLE, str(folder / "script"))
    identifier, _, _ = begun(database, SPEC)
    ranks = start_ranks(assignment(database, identifier), BOARDS, free_port(), folder, patience_s)
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    started = Job(identifier, folder, stranger)
    try:
        mine = [rank.pid or 0 for rank in ranks]
        boards = (
            StubBoard(uuid=BOARDS[0], period_s=PERIOD_S, mortals=(mine[0],)),
            StubBoard(uuid=BOARDS[1], period_s=PERIOD_S, mortals=(mine[1], stranger.pid)),
        )
        unfinished = StubScript(boards=boards).write(folder / "unfinished")
        unfinished.rename(folder / "script")
        yield started
        wait_until(lambda: all(rank.exitcode is not None for rank in ranks), ENDED_S, "end", started.tell)
        assert [rank.exitcode for rank in ranks] == [0, 0], started.tell()
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
        stranger.kill()
        stranger.wait()


def stored(database: Database, job: Job) -> ExperimentDetail:
    """What the service makes of all that the job said."""
    events = [*said(job.folder), _end(job)]
    for start in range(0, len(events), 200):
        batch = EventBatch(experiment_id=job.experiment_id, events=tuple(events[start : start + 200]))
        assert ingest.ingest(database, batch).rejected == {}
    found = experiments.get(database, job.experiment_id)
    assert found.state == "succeeded", found
    return found


def _end(job: Job) -> Event:
    at = said(job.folder)[-1].at
    return Source("end").event(job.experiment_id, 1, at, ExperimentFinished(outcome="succeeded"))


def idle_flags(job: Job) -> dict[str, tuple[str, ...]]:
    windows = [event.payload for event in said(job.folder) if isinstance(event.payload, Window)]
    return {window.device_uuid: window.flags for window in windows if window.phase == "idle_before"}


def test_the_first_energy_waits_until_a_stranger_has_left(
    sqlite_database: Database, tmp_path: Path, nvml_stub: NvmlStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job(sqlite_database, tmp_path, nvml_stub, monkeypatch, patience_s=200) as started:
        wait_until(started.messages, ENDED_S, "word of the stranger", started.tell)
        (message,) = started.messages()
        assert message.startswith("waiting up to 200 s for other processes to leave")
        assert str(started.stranger.pid) in message
        assert BOARDS[1] in message
        assert BOARDS[0] not in message
        assert not any(isinstance(event.payload, Window) for event in said(tmp_path)), "no energy meanwhile"
        started.stranger.kill()
        started.stranger.wait()
    assert started.messages()[1].startswith("the boards are free after")
    assert [flags for flags in idle_flags(started).values() if "board_shared" in flags] == []
    stored(sqlite_database, started)
    for run in runs.list_runs(sqlite_database, started.experiment_id).items:
        assert (run.energy_training_mj or 0) > 0
        assert run.method == "nvml.counter"
        assert "board_shared" not in run.flags


def test_one_who_stays_is_told_flagged_and_blocks_the_verdict(
    sqlite_database: Database, tmp_path: Path, nvml_stub: NvmlStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job(sqlite_database, tmp_path, nvml_stub, monkeypatch, patience_s=5) as started:
        pass
    waiting, going_on = started.messages()[:2]
    assert waiting.startswith("waiting up to 5 s")
    assert going_on.startswith("going on beside other processes, so no energy will be the arms' alone")
    assert str(started.stranger.pid) in going_on
    assert "board_shared" in idle_flags(started)[BOARDS[1]]
    stored(sqlite_database, started)
    for run in runs.list_runs(sqlite_database, started.experiment_id).items:
        assert "board_shared" in run.flags
    (arm,) = comparisons.compare(sqlite_database, started.experiment_id).arms
    assert arm.primary.verdict == "not_comparable"
    assert "board_shared" in arm.primary.blocking_flags
