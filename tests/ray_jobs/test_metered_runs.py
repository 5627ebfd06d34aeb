"""From scripted boards to the rows of runs: real ranks, windows, idle baselines and samples; only Ray is left out."""

import math
import os
import statistics
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import select

from phantom_core.protocol import Event
from phantom_core.spec import ExperimentSpec
from services import experiments, runs
from services.database import Database
from services.tables import Device, Run, Window
from services.views import RunView
from tests.nvml_stub.harness import ALWAYS, StubBoard, StubScript, build_stub
from tests.ray_jobs.metered_ranks import PERIOD_S
from tests.services.simulated_job import begun, deliver, spec

pytestmark = pytest.mark.timeout(600)

ONE, TWO = "GPU-11111111-1111-1111-1111-111111111111", "GPU-22222222-2222-2222-2222-222222222222"
WATTS = {ONE: 100.0, TWO: 200.0}
EXPERIMENT = spec(
    model={"width": 16, "depth": 1},
    training={"batch_size": 32, "evaluation_interval": 1_000, "stop": {"kind": "seconds", "seconds": 1.5}},
    arms=[
        {"strategy": "tensor", "name": "both", "world_size": 2},
        {"strategy": "dense", "name": "one", "world_size": 1},
    ],
    measurement={
        "rounds": 1,
        "minimum_window_s": 1.0,
        "idle_baseline_s": 1.0,
        "energy_precision": 0.9,
        "sample_rate_hz": 20.0,
    },
)


@dataclass
class Made:
    """What a round over two boards left behind."""

    database: Database
    runs: dict[str, RunView]

    def windows(self) -> list[tuple[Window, str]]:
        """All windows, each with its board's UUID."""
        with self.database.read() as session:
            found = session.execute(select(Window, Device.uuid).join(Device, Device.key == Window.device_key))
            return [(window, uuid) for window, uuid in found]

    def idle_power_mw(self, uuid: str) -> float:
        """What a board drew before the first round and after the last."""
        idle = [window for window, of in self.windows() if of == uuid and window.phase.startswith("idle_")]
        return statistics.fmean((window.energy_mj or 0.0) / window.duration_s for window in idle)

    def charged(self, run: RunView) -> list[tuple[Window, str]]:
        """Windows in which a run trained, of the boards that it is charged for."""
        with self.database.read() as session:
            key = session.execute(select(Run.key).where(Run.id == run.id)).scalar_one()
        return [
            (window, uuid)
            for window, uuid in self.windows()
            if (window.run_key, window.phase, window.charged) == (key, "training", True)
        ]


def make(database: Database, folder: Path, experiment: ExperimentSpec, module_extra_w: float = 0.0) -> Made:
    """One round over boards that draw 100 W and 200 W all the time, with one process on each.

    `module_extra_w` is what the rest of each board's module draws, where it is on one.
    """
    identifier, _, job = begun(database, experiment)
    (folder / "assignment.json").write_text(job.assignment.model_dump_json())
    boards = tuple(
        StubBoard(
            uuid=uuid,
            power=((0.0, watts),),
            period_s=PERIOD_S,
            processes=((7_001, ALWAYS),),
            module_extra_w=module_extra_w,
        )
        for uuid, watts in WATTS.items()
    )
    stub = build_stub(folder).environment(StubScript(boards=boards), folder / "script")
    command = [sys.executable, "-m", "tests.ray_jobs.metered_ranks", str(folder), ONE, TWO]
    subprocess.run(command, env={**os.environ, **stub, "OMP_NUM_THREADS": "1"}, check=True, timeout=540)
    lines = [line for path in sorted(folder.glob("*.events")) for line in path.read_bytes().splitlines()]
    assert deliver(database, job, map(Event.model_validate_json, lines)).rejected == {}
    deliver(database, job, job.finished())
    assert experiments.get(database, identifier).state == "succeeded"
    return Made(database, {run.arm: run for run in runs.list_runs(database, identifier).items})


def test_gross_idle_and_net_energy_are_stored_together_and_each_board_counts_once(
    sqlite_database: Database, tmp_path: Path
) -> None:
    made = make(sqlite_database, tmp_path, EXPERIMENT)
    assert_gross_idle_and_net(made)
    assert_each_board_once(made)


def test_a_superchips_module_is_metered_where_the_spec_asks_for_it(
    sqlite_database: Database, tmp_path: Path
) -> None:
    measurement = EXPERIMENT.measurement.model_copy(update={"gpu_scope": "module"})
    experiment = EXPERIMENT.model_copy(update={"measurement": measurement, "arms": EXPERIMENT.arms[:1]})
    made = make(sqlite_database, tmp_path, experiment, module_extra_w=150.0)
    run = made.runs["both"]
    assert (run.method, run.scope, run.energy_reason) == ("nvml.counter", "module", None)
    assert run.energy_training_mj is not None
    # A window shorter than the counter's period has no energy, and so covers nothing.
    measured = [(window, uuid) for window, uuid in made.windows() if window.energy_mj is not None]
    assert {window.phase for window, _ in measured} >= {"idle_before", "training", "idle_after"}
    for window, uuid in measured:
        assert window.scope == "module"
        assert window.uncertainty_mj is not None
        drawn_mj = 1_000 * (WATTS[uuid] + 150.0) * window.duration_s
        assert window.energy_mj == pytest.approx(drawn_mj, abs=window.uncertainty_mj + 1)
    with sqlite_database.read() as session:
        assert set(session.scalars(select(Device.scope))) == {"module"}


def assert_gross_idle_and_net(made: Made) -> None:
    for arm, watts in (("both", 300.0), ("one", 100.0)):
        run = made.runs[arm]
        assert None not in (run.energy_training_mj, run.energy_training_uncertainty_mj, run.training_s)
        gross_mj, bound_mj = (
            float(value or 0) for value in (run.energy_training_mj, run.energy_training_uncertainty_mj)
        )
        charged = made.charged(run)
        drawn_mj = math.fsum(1_000 * WATTS[uuid] * window.duration_s for window, uuid in charged)
        assert gross_mj == pytest.approx(drawn_mj, abs=bound_mj)
        assert 0 < bound_mj < 0.9 * gross_mj
        assert run.idle_power_mw == pytest.approx(1_000 * watts, rel=0.2)
        idle_mj = math.fsum(made.idle_power_mw(uuid) * window.duration_s for window, uuid in charged)
        assert run.energy_net_mj == pytest.approx(gross_mj - idle_mj, abs=1e-6 * gross_mj)
        assert abs(run.energy_net_mj or 0) <= bound_mj + 0.2 * gross_mj, "boards that only ever idled"
        assert (run.method, run.scope, run.energy_reason) == ("nvml.counter", "gpu", None)
        if run.energy_integral_mj is None:
            assert "sampler_gap" in run.flags
        else:
            assert run.energy_integral_mj == pytest.approx(gross_mj, abs=bound_mj + 0.2 * gross_mj)
        # Seconds are short, samples few on a busy machine, and a rank on the CPU has no graph.
        harmless = {"short_window", "sampler_gap", "sampler_lost", "graph_fallback"}
        assert set(run.flags) <= harmless, "no board was to blame"
    of_the_other_mj = made.runs["one"].energy_idle_boards_mj
    assert of_the_other_mj is not None
    assert of_the_other_mj > 0, "while it waited"
    assert made.runs["both"].energy_idle_boards_mj is None


def assert_each_board_once(made: Made) -> None:
    told = Counter((window.phase, window.run_key, window.number, uuid) for window, uuid in made.windows())
    assert set(told.values()) == {1}
    for phase in ("idle_before", "idle_after"):
        rested = {uuid: window for window, uuid in made.windows() if window.phase == phase}
        assert set(rested) == {ONE, TWO}
        for uuid, window in rested.items():
            assert window.uncertainty_mj is not None
            drawn_mj = 1_000 * WATTS[uuid] * window.duration_s
            assert window.energy_mj == pytest.approx(drawn_mj, abs=window.uncertainty_mj + 1)
            assert (window.charged, window.flags, window.reason) == (False, None, None)
    spans = [(window.started_monotonic_s, window.phase) for window, _ in made.windows()]
    assert (min(spans)[1], max(spans)[1]) == ("idle_before", "idle_after")
