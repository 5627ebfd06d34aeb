"""One rank's loop over rounds and arms, and what its runs share."""

import platform
import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import ray
import ray.train
import ray.train.collective
import torch

import phantom_core
from phantom_core.meters.base import Instant, Meter
from phantom_core.meters.company import OwnProcesses, driver_process_id
from phantom_core.meters.idle import idle_power
from phantom_core.plan import PlannedArm
from phantom_core.precision import Enough
from phantom_core.protocol import (
    AssignedRun,
    Assignment,
    DeviceInfo,
    ExperimentStarted,
    Payload,
    Phase,
    Progress,
    RankInfo,
    Reason,
    RunSkipped,
    Window,
)
from phantom_core.tasks import Dataset, load_task
from ray_jobs import patience
from ray_jobs.arm_run import ArmRun
from ray_jobs.checkpoints import Checkpoints, clear_out, identity_of
from ray_jobs.clearance import PATIENCE_S as FREE_BOARDS_S
from ray_jobs.clearance import wait_for_free_boards
from ray_jobs.headway import Headway
from ray_jobs.ranks import Ranks, Team
from ray_jobs.rounds import Rounds
from ray_jobs.same_data import load_same
from ray_jobs.spent import reads_device
from ray_jobs.spool import Spool
from ray_jobs.window_clock import WindowClock


class Bench:
    """Everything that the runs of one rank share: groups, meter, data, spool."""

    def __init__(
        self,
        assignment: Assignment,
        ranks: Ranks,
        spool: Spool,
        meter: Meter,
        headway: Headway | None = None,
    ) -> None:
        """Args.

        assignment: What to do.
        ranks: With whom.
        spool: Where events go.
        meter: Reads this rank's device.
        headway: Is told how far this rank is; None if nobody asks for it.

        Raises:
            TaskError: The data can't be had, or are not the same on all ranks; on every rank.
        """
        self._headway = headway or Headway()
        self._assignment = assignment
        self._plan = assignment.plan
        self._rounds = Rounds(assignment)
        self._ranks = ranks
        self._spool = spool
        self._meter = meter
        self._devices = ranks.everyone.gather(meter.device)
        self._process_ids = ranks.everyone.gather(driver_process_id())
        roots = [Path(root) for root in assignment.data_roots]
        self._dataset: Dataset = load_same(
            partial(load_task, self._plan.spec.task, roots), ranks.everyone, meter.device.host
        )
        self._digest = self._dataset.digest()

    def announce(self) -> None:
        """Tells the service that the worker group is there, with its devices and versions."""
        if self._ranks.rank == 0:
            self._spool.emit(
                ExperimentStarted(
                    backend="nccl" if self._ranks.backend == "nccl" else "gloo",
                    ranks=tuple(
                        RankInfo(rank=rank, host=device.host, device_uuid=device.uuid, process_id=process_id)
                        for rank, (device, process_id) in enumerate(
                            zip(self._devices, self._process_ids, strict=True)
                        )
                    ),
                    devices=tuple(_distinct(self._devices)),
                    versions=_versions(),
                    data_digest=self._digest,
                )
            )

    def make_all_runs(self) -> str | None:
        """Waits for free boards, measures idle power, makes every run in order, measures idle power again.

        Returns:
            What is to be said of the rounds, on the first rank.
        """
        runs = self._assignment.runs
        said: str | None = None
        self._headway.enter("the removal of old checkpoints", patience.UNKNOWN_S)
        clear_out()
        self._headway.enter("the wait for free boards", 2 * FREE_BOARDS_S)
        self._synchronize()  # from here on every rank is on the driver's list
        wait_for_free_boards(
            self._meter if self._reads_meter(self._ranks.world_size) else None,
            self._on_my_device(),
            gather=self._ranks.everyone.gather,
            tell=partial(self._progress, done=0),
        )
        self._rest("idle_before")
        for number, run in enumerate(runs):
            enough = self._enough_before(run)
            if enough is not None:
                self._skip(runs[number:], enough)
                break
            self._progress(f"round {run.round + 1}: {run.arm}", number)
            self._rounds.note(run, self._make_one(run))
        else:
            said = self._rounds.used_up() if self._ranks.rank == 0 else None
        self._rest("idle_after")
        self._progress("all runs made", len(runs))
        return said

    def _enough_before(self, run: AssignedRun) -> Enough | None:
        """Asked where a round begins; rank 0 has been in every run and decides for all."""
        if not self._rounds.begins_with(run):
            return None
        mine = self._rounds.enough(run.round) if self._ranks.rank == 0 else None
        return self._ranks.everyone.from_first(mine)

    def _skip(self, runs: Sequence[AssignedRun], enough: Enough) -> None:
        if self._ranks.rank != 0:
            return
        reason = Reason.PRECISION_REACHED if enough.is_precise else Reason.NOTHING_TO_COMPARE
        for run in runs:
            skipped = RunSkipped(reason=reason, message=enough.message)
            self._spool.emit(skipped, run=(run.run_id, run.attempt))

    def _make_one(self, run: AssignedRun) -> float | None:
        """Makes one run; what it gives to the comparison, where this rank took part in it."""
        planned = self._plan.arm(run.arm)
        self._headway.about(f"{run.arm}, round {run.round + 1}")
        try:
            return self._make_planned(run, planned)
        finally:
            self._headway.about("")

    def _make_planned(self, run: AssignedRun, planned: PlannedArm) -> float | None:
        team = self._ranks.team(planned.arm.world_size)
        emit = partial(self._spool.emit, run=(run.run_id, run.attempt))
        everyone = self._ranks.everyone
        if team is None:
            # Its two barriers are the whole group's, which the arm's ranks keep before and after their run.
            with self._clock(everyone, emit, charged=False).window("waiting"):
                pass
            self._renew_after_alarm(planned.arm.world_size, alarmed=False)
            return None
        self._headway.enter("the wait for all ranks before the run")
        everyone.agree(True)
        reader = self._reads_meter(team.size)
        devices = self._devices[: team.size]
        arm_run = ArmRun(
            run,
            planned,
            self._plan.spec.measurement,
            self._dataset,
            team=team,
            clock=self._clock(team, emit, charged=True),
            reads_meter=reader,
            device=self._ranks.device,
            checkpoints=Checkpoints(
                self._assignment.experiment_id,
                run,
                identity_of(run, planned, devices, self._digest),
                team=team,
                interval_s=self._plan.spec.resources.checkpoint_interval_s,
                headway=self._headway,
            ),
            emit=emit,
            headway=self._headway,
        )
        outcome = arm_run.make()
        self._headway.enter("the wait for all ranks after the run")
        everyone.agree(True)
        self._renew_after_alarm(team.size, alarmed=arm_run.alarmed)
        return arm_run.figure_mj if outcome == "succeeded" else None

    def _renew_after_alarm(self, size: int, *, alarmed: bool) -> None:
        """All ranks, those outside the arm included, make a group anew that its ranks gave up."""
        self._headway.enter("the agreement on a new group of ranks")
        if not self._ranks.everyone.agree(not alarmed):
            self._ranks.renew(size)

    def _rest(self, phase: Phase) -> None:
        seconds = self._plan.spec.measurement.idle_baseline_s
        if seconds <= 0:
            return
        everyone = self._ranks.everyone
        self._headway.enter("the measurement of idle power", 2 * seconds)
        self._synchronize()
        everyone.agree(True)
        if self._reads_meter(everyone.size):
            start = Instant.now()
            (idle,) = idle_power([self._meter], seconds, own=self._on_my_device())
            self._spool.emit(
                Window(
                    phase=phase,
                    index=0,
                    host=idle.host,
                    device_uuid=idle.device_uuid,
                    charged=False,
                    started_at=start.at,
                    started_monotonic_s=start.monotonic_s,
                    duration_s=idle.duration_s,
                    energy_mj=idle.energy.energy_mj,
                    uncertainty_mj=idle.energy.uncertainty_mj,
                    method=idle.energy.method,
                    scope=idle.energy.scope,
                    reason=idle.reason or idle.energy.reason,
                    flags=idle.energy.flags,
                )
            )
        everyone.agree(True)

    def _clock(self, team: Team, emit: Callable[[Payload], object], *, charged: bool) -> WindowClock:
        return WindowClock(
            self._meter if self._reads_meter(team.size) else None,
            agree=team.agree,
            synchronize=self._synchronize,
            emit=emit,
            charged=charged,
            alarm=partial(self._ranks.raise_alarm, team.size) if charged else None,
            headway=self._headway,
        )

    def _on_my_device(self) -> OwnProcesses:
        mine = (self._meter.device.host, self._meter.device.uuid)
        told = zip(self._devices, self._process_ids, strict=True)
        return OwnProcesses.of([pid for device, pid in told if (device.host, device.uuid) == mine])

    def _reads_meter(self, team_size: int) -> bool:
        return reads_device(self._devices[:team_size], self._ranks.rank)

    def _synchronize(self) -> None:
        if self._ranks.device.type == "cuda":
            torch.cuda.synchronize(self._ranks.device)

    def _progress(self, message: str, done: int) -> None:
        if self._ranks.rank == 0:
            self._spool.emit(Progress(message=message, done=done, total=len(self._assignment.runs)))


def _distinct(devices: list[DeviceInfo]) -> list[DeviceInfo]:
    return list({(device.host, device.uuid): device for device in devices}.values())


def _versions() -> dict[str, str]:
    versions = {
        "ghostwatt": phantom_core.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "ray": ray.__version__,
        "host": socket.gethostname(),
    }
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    if torch.cuda.is_available():
        nccl: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        versions["nccl"] = ".".join(map(str, nccl))
    return versions
