"""One arm on two real gloo ranks: every way in which its run may end, on both ranks alike."""

import math
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from phantom_core.collectives import Communicator
from phantom_core.meters.base import EnergyReading, Instant, MeterBase, PowerReading
from phantom_core.plan import PlannedArm
from phantom_core.protocol import (
    AssignedRun,
    BoardState,
    DeviceInfo,
    Metrics,
    Payload,
    RunFinished,
    RunStarted,
    Window,
)
from phantom_core.spec import (
    MeasurementSpec,
    ModelSpec,
    PhantomArm,
    StopAtJoules,
    StopAtSteps,
    StopAtTargetLoss,
    StopRule,
    TeacherTask,
    TrainingSpec,
)
from phantom_core.tasks import load_task
from phantom_core.training import Trainer
from ray_jobs.arm_run import ArmRun
from ray_jobs.checkpoints import Checkpoints
from ray_jobs.ranks import Team
from ray_jobs.window_clock import WindowClock
from tests.distributed import RankFailedError, run_ranks

TASK = TeacherTask(features=8, outputs=2, latents=4, teacher_width=8, train_rows=64, validation_rows=32)
PEER_GONE_S = 15


@dataclass(frozen=True)
class Case:
    """One run, and what goes wrong in it."""

    stop: StopRule
    learning_rate: float = 0.01
    minimum_window_s: float = 0.01
    energy_known: bool = True
    lag_s: float = 0.0
    """How old the device's total may be."""
    energy_precision: float = 0.05
    broken: str | None = None
    """Method of rank 1's trainer that raises."""
    error: type[Exception] = ValueError
    spool_full: bool = False


@dataclass
class Told:
    """What one rank said."""

    outcome: str
    payloads: list[Payload]
    still_together: bool

    def of(self, kind: type[Any]) -> list[Any]:
        return [payload for payload in self.payloads if isinstance(payload, kind)]

    @property
    def finished(self) -> RunFinished:
        (finished,) = self.of(RunFinished)
        assert isinstance(finished, RunFinished)
        return finished


class HundredWatts(MeterBase):
    """A device whose power never changes."""

    def __init__(self, rank: int, known: bool, lag_s: float) -> None:
        self._known, self._lag_s = known, lag_s
        self.device = DeviceInfo(
            host="host", uuid=f"GPU-{rank}", kind="cuda", name="H100", method="nvml.counter", scope="gpu"
        )

    def read_energy(self) -> EnergyReading:
        now = Instant(time.time(), time.monotonic())
        if not self._known:
            return EnergyReading(now, None, None, None, reason="gone")
        return EnergyReading(
            now,
            now.monotonic_s * 100_000.0,
            "nvml.counter",
            "gpu",
            uncertainty_mj=self._lag_s * 100_000.0,
            lag_s=self._lag_s,
        )

    def read_power(self) -> PowerReading:
        return PowerReading(Instant(time.time(), time.monotonic()), 100_000.0, "instant")

    def read_state(self) -> BoardState:
        raise NotImplementedError


def make(case: Case) -> Told:
    """Makes one run on this rank of the default group, then meets the others again."""
    rank, size = dist.get_rank(), dist.get_world_size()
    # Where a peer is gone its collectives end after this, not after minutes.
    compute = dist.new_group(list(range(size)), timeout=timedelta(seconds=PEER_GONE_S))
    team = Team(rank=rank, size=size, compute=Communicator(compute), control=_group())
    payloads: list[Payload] = []

    def emit(payload: Payload) -> None:
        if case.spool_full and isinstance(payload, Metrics):
            raise OSError("no space left on device")
        payloads.append(payload)

    clock = WindowClock(
        HundredWatts(rank, case.energy_known, case.lag_s),
        agree=team.agree,
        synchronize=lambda: None,
        emit=emit,
        charged=True,
    )
    training = TrainingSpec(
        batch_size=16,
        optimizer="sgd",
        learning_rate=case.learning_rate,
        evaluation_interval=5,
        stop=case.stop,
    )
    assigned = AssignedRun(run_id="run-1", attempt=1, round=0, position=0, arm="phantom", seed=3)
    run = ArmRun(
        assigned,
        PlannedArm(
            arm=PhantomArm(name="phantom", world_size=size, ghosts=1),
            model=ModelSpec(width=8, depth=2),
            training=training,
        ),
        MeasurementSpec(
            minimum_window_s=case.minimum_window_s, energy_precision=case.energy_precision, warmup_steps=1
        ),
        load_task(TASK),
        team=team,
        clock=clock,
        reads_meter=True,
        device=torch.device("cpu"),
        checkpoints=Checkpoints("exp-1", assigned, "the same", team=team, interval_s=None),
        emit=emit,
    )
    if case.broken is not None and rank == 1:
        with mock.patch.object(Trainer, case.broken, side_effect=case.error("rank 1 is unwell\nand more")):
            outcome = run.make()
    else:
        outcome = run.make()
    return Told(outcome, payloads, team.gather("here") == ["here"] * size)


def _group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def make_all(cases: dict[str, Case]) -> dict[str, Told]:
    return {name: make(case) for name, case in cases.items()}


CASES = {
    "steps": Case(StopAtSteps(steps=12)),
    "reached": Case(StopAtTargetLoss(target_loss=1e6, max_steps=50)),
    "missed": Case(StopAtTargetLoss(target_loss=1e-12, max_steps=10)),
    "diverging": Case(StopAtSteps(steps=200), learning_rate=1000.0),
    "joules": Case(StopAtJoules(joules=1.0, max_steps=50), energy_known=False),
    "short": Case(StopAtSteps(steps=5), minimum_window_s=2.0),
    # Each window's edges are 5 J off, so 5 % needs 100 J: a second of 100 W, whatever the minimum.
    "imprecise": Case(StopAtSteps(steps=12), lag_s=0.05),
    # The first of them when its peer waits for nothing, the second when it waits in a collective.
    "building": Case(StopAtSteps(steps=10), broken="_on_device", error=torch.OutOfMemoryError),
    "training": Case(StopAtSteps(steps=10), broken="run"),
}


@pytest.fixture(scope="module")
def all_made() -> dict[str, list[Told]]:
    first, second = run_ranks(2, make_all, CASES)
    return {name: [first[name], second[name]] for name in CASES}


def made(all_made: dict[str, list[Told]], name: str) -> list[Told]:
    told = all_made[name]
    assert [rank.still_together for rank in told] == [True, True]
    assert told[1].of(RunFinished) == told[1].of(RunStarted) == told[1].of(Metrics) == []
    assert told[0].outcome == told[1].outcome == told[0].finished.outcome
    return told


def steps(told: Told, phase: str) -> list[int]:
    return [window.steps for window in told.of(Window) if window.phase == phase]


def test_a_run_trains_its_steps_and_reports_them_once(all_made: dict[str, list[Told]]) -> None:
    first, second = made(all_made, "steps")
    finished = first.finished
    assert (finished.outcome, finished.steps, finished.samples) == ("succeeded", 12, 12 * 16)
    assert steps(first, "training") == steps(second, "training") == [5, 5, 2]
    assert finished.training_s == pytest.approx(
        math.fsum(window.duration_s for window in first.of(Window) if window.phase == "training")
    )
    points = [point for metrics in first.of(Metrics) for point in metrics.points]
    assert [p.step for p in points if p.name == "evaluation_loss"] == [0, 5, 10, 12]
    assert [p.step for p in points if p.name == "train_loss"] == [5, 10, 12]
    energy_mj = math.fsum(
        window.energy_mj
        for told in (first, second)
        for window in told.of(Window)
        if window.phase == "training"
    )
    assert points[-1].energy_mj == pytest.approx(energy_mj)
    assert finished.bytes_sent_per_step is not None
    assert finished.bytes_sent_per_step > 0
    assert (finished.step_mode, finished.compiled, finished.exchange) == ("eager", False, "gloo")
    assert finished.exchange_reason == "the fused exchange needs CUDA, this rank computes on cpu"
    assert (finished.target_step, finished.energy_to_target_mj) == (None, None)


def test_a_target_reached_is_told_with_its_step_and_energy(all_made: dict[str, list[Told]]) -> None:
    first, _ = made(all_made, "reached")
    finished = first.finished
    assert (finished.outcome, finished.target_step, finished.energy_to_target_mj) == ("succeeded", 0, 0.0)


def test_a_target_missed_is_told_as_missed(all_made: dict[str, list[Told]]) -> None:
    first, _ = made(all_made, "missed")
    finished = first.finished
    assert (finished.outcome, finished.steps, finished.target_step) == ("succeeded", 10, None)
    assert "max_steps" in (finished.message or "")


def test_a_loss_that_is_no_number_ends_the_run_as_diverged(all_made: dict[str, list[Told]]) -> None:
    first, _ = made(all_made, "diverging")
    finished = first.finished
    assert (finished.outcome, finished.reason) == ("diverged", "non_finite_loss")
    assert 0 < finished.steps < 200
    assert steps(first, "steady") == []


def test_joules_that_cannot_be_watched_fail_the_run_with_the_reason(all_made: dict[str, list[Told]]) -> None:
    first, _ = made(all_made, "joules")
    assert (first.finished.outcome, first.finished.reason) == ("failed", "energy_unknown")
    assert first.finished.steps == 5


def test_training_too_short_for_the_meter_is_followed_by_a_steady_window(
    all_made: dict[str, list[Told]],
) -> None:
    first, second = made(all_made, "short")
    steady = [window for window in first.of(Window) if window.phase == "steady"]
    assert 1 <= len(steady) <= 5
    assert max(window.duration_s for window in steady) > first.finished.training_s
    assert steps(first, "steady") == steps(second, "steady")
    assert first.finished.steps == 5


def test_windows_too_short_for_the_asked_precision_are_followed_by_one_that_is_not(
    all_made: dict[str, list[Told]],
) -> None:
    first, second = made(all_made, "imprecise")
    steady = [window for window in first.of(Window) if window.phase == "steady"]
    assert steady
    energy_mj = math.fsum(window.energy_mj for window in steady)
    assert math.fsum(window.uncertainty_mj for window in steady) <= 0.05 * energy_mj
    assert steps(first, "steady") == steps(second, "steady")
    assert (first.finished.steps, first.finished.outcome) == (12, "succeeded")


@pytest.mark.parametrize(
    ("name", "reason", "phase"),
    [("building", "out_of_memory", "setup"), ("training", "arm_error", "training")],
)
def test_an_error_on_one_rank_fails_the_run_on_all_with_its_cause_and_they_stay_together(
    all_made: dict[str, list[Told]], name: str, reason: str, phase: str
) -> None:
    first, second = made(all_made, name)
    finished = first.finished
    assert (finished.outcome, finished.reason) == ("failed", reason)
    assert "rank 1: " in (finished.message or "")
    assert (finished.message or "").endswith("rank 1 is unwell")
    for told in (first, second):
        assert told.of(Window)[-1].phase == phase
        assert told.of(Window)[-1].energy_mj is not None


def test_a_rank_that_cannot_store_its_events_does_not_leave_the_others_waiting() -> None:
    with pytest.raises(RankFailedError, match="no space left"):
        run_ranks(2, make, Case(StopAtSteps(steps=10), spool_full=True))
