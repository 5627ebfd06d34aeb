"""What a long run has reached, kept on its ranks' hosts, so that another attempt at it goes on from there.

Saved between two windows, never inside one. Every rank writes its own part; a run goes on from the latest step that
all of its ranks have, of the same arm, seed and boards. Where there is none (other hosts, other boards, a full disk)
it begins anew. Whole files or none (`sealed_files.py`): a rank killed while it saves leaves what was there before.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from phantom_core.plan import PlannedArm
from phantom_core.protocol import CHECKPOINT_FOLDER, AssignedRun, Carried, DeviceInfo
from ray_jobs import sealed_files
from ray_jobs.headway import Headway
from ray_jobs.patience import for_bytes
from ray_jobs.ranks import Team
from ray_jobs.sealed_files import DamagedError, Seal
from ray_jobs.spent import Spent

log = logging.getLogger(__name__)

KEPT = 2
"""Latest steps of a run that each rank keeps: the last one may be missing on a rank that was killed meanwhile."""
LEFT_BEHIND_S = 172_800.0
"""Age from which what an experiment left on a host, since it never went on there, is removed by the next."""


@dataclass(frozen=True)
class Reached:
    """How far a run has come at the end of a training window, as one rank knows it."""

    step: int
    """Optimizer steps."""
    spent: Spent
    """In the training windows, over the arm's boards."""
    own: Spent
    """The same as this rank read it."""
    train_loss: float | None
    evaluation_loss: float | None
    carried: tuple[Carried, ...]
    """Where its training windows are: by attempt, the earliest first, up to this step."""
    trainer: Mapping[str, Any]
    """The training state, `Trainer.state_dict`."""


class Checkpoints:
    """Those of one run on one rank.

    Args:
        experiment_id: The service's id, safe as a name.
        run: The run; its id is safe as a name.
        identity: What must be the same in both attempts (`identity_of`).
        team: The arm's ranks.
        interval_s: Least seconds between two savings; None saves nothing and looks for nothing.
        headway: Is told what this rank does; None if nobody asks for it.
        clock_s: A monotonic clock.
    """

    def __init__(
        self,
        experiment_id: str,
        run: AssignedRun,
        identity: str,
        *,
        team: Team,
        interval_s: float | None,
        headway: Headway | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._experiment_id = experiment_id
        self._run = run
        self._identity = identity
        self._team = team
        self._interval_s = interval_s
        self._headway = headway or Headway()
        self._clock_s = clock_s
        self._saved_s = clock_s()

    def is_due(self) -> bool:
        """Whether to save now; all ranks must ask, and rank 0's clock decides."""
        if self._interval_s is None:
            return False
        return self._team.from_first(self._clock_s() - self._saved_s >= self._interval_s)

    def save(self, reached: Reached) -> None:
        """Keeps this rank's part; one that can't be kept is told in the log, and training goes on."""
        self._headway.enter(f"saving step {reached.step:,}", for_bytes(_size(reached.trainer)))
        try:
            folder = _folder(self._experiment_id)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            sealed_files.write(self._name(reached.step), self._told(reached), reached.trainer)
            for step in self._steps()[:-KEPT]:
                sealed_files.remove(self._name(step))
        except (OSError, RuntimeError) as error:  # torch wraps a full disk in the latter
            log.warning("run %s: step %d could not be saved: %s", self._run.run_id, reached.step, error)
        self._saved_s = self._clock_s()

    def latest(self) -> Reached | None:
        """What to go on from, the same step on all ranks, which must all ask; None if there is nothing.

        Ranks agree by seals, and then each reads one file. Should that be damaged on any of them, all go on to the step
        before. What lies beyond the step that they agree on is removed: the run comes by there again.
        """
        if self._interval_s is None:
            return None
        reached = self._agreed()
        for step in self._steps():
            if reached is None or step > reached.step:
                try:
                    sealed_files.remove(self._name(step))
                except OSError as error:
                    self._warn(step, error)
        return reached

    def _agreed(self) -> Reached | None:
        self._headway.enter("the agreement on what all ranks have saved")
        seals = {step: seal for step in self._steps() if (seal := self._seal(step)) is not None}
        common = set.intersection(*map(set, self._team.gather(sorted(seals))))
        for step in sorted(common, reverse=True):
            self._headway.enter(f"reading step {step:,}", for_bytes(seals[step].size))
            reached = self._read(step, seals[step])
            if all(self._team.gather(reached is not None)):
                return reached
        return None

    def forget(self) -> None:
        """Removes this rank's part: the run has ended."""
        for step in self._steps():
            sealed_files.remove(self._name(step))
        with suppress(OSError):
            _folder(self._experiment_id).rmdir()  # unless another rank's or run's is there

    def _told(self, reached: Reached) -> dict[str, Any]:
        return {
            "identity": self._identity,
            "step": reached.step,
            "spent": asdict(reached.spent),
            "own": asdict(reached.own),
            "train_loss": reached.train_loss,
            "evaluation_loss": reached.evaluation_loss,
            "carried": [each.model_dump() for each in reached.carried],
        }

    def _seal(self, step: int) -> Seal | None:
        """None if there is nothing whole of this run."""
        try:
            seal = sealed_files.look(self._name(step))
        except (OSError, DamagedError) as error:
            self._warn(step, error)
            return None
        return seal if seal.told.get("identity") == self._identity else None

    def _read(self, step: int, seal: Seal) -> Reached | None:
        told = seal.told
        try:
            return Reached(
                step=told["step"],
                spent=Spent(**told["spent"]),
                own=Spent(**told["own"]),
                train_loss=told["train_loss"],
                evaluation_loss=told["evaluation_loss"],
                carried=tuple(Carried(**each) for each in told["carried"]),
                trainer=sealed_files.read(self._name(step), seal),
            )
        except (OSError, DamagedError, TypeError, KeyError, ValidationError) as error:
            self._warn(step, error)
            return None

    def _warn(self, step: int, error: Exception) -> None:
        log.warning("run %s: what was saved of step %d can't be used: %s", self._run.run_id, step, error)

    def _steps(self) -> list[int]:
        """Steps of which this rank has anything, in order."""
        prefix = self._name("").name
        names = [file.name for file in _folder(self._experiment_id).glob(f"{prefix}*")]
        steps = {name.removeprefix(prefix).partition(".")[0] for name in names}
        return sorted(int(step) for step in steps if step.isdecimal())

    def _name(self, step: int | str) -> Path:
        return _folder(self._experiment_id) / f"{self._run.run_id}.rank-{self._team.rank}.{step}"


def identity_of(run: AssignedRun, planned: PlannedArm, devices: Sequence[DeviceInfo], data: str) -> str:
    """Tells a run that may go on from one that would become another: arm and recipe, seed, boards by rank, data.

    Args:
        run: Which run.
        planned: Its arm.
        devices: Of the arm's ranks, in their order.
        data: Digest of the task's rows.
    """
    boards = [(device.host, device.uuid) for device in devices]
    told = json.dumps([planned.model_dump(mode="json"), run.seed, boards, data], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()


def clear_out(now_s: float | None = None) -> None:
    """Removes what experiments left on this host long ago, since no attempt of theirs came back to it.

    Args:
        now_s: The time, in seconds since 1970; None asks the clock.
    """
    oldest_s = (time.time() if now_s is None else now_s) - LEFT_BEHIND_S
    for folder in _base().glob("*"):
        with suppress(OSError):
            if max(each.stat().st_mtime for each in [folder, *folder.iterdir()]) < oldest_s:
                shutil.rmtree(folder, ignore_errors=True)


def _base() -> Path:
    return Path(os.environ.get(CHECKPOINT_FOLDER) or tempfile.gettempdir()) / "ghostwatt-checkpoints"


def _folder(experiment_id: str) -> Path:
    return _base() / experiment_id


def _size(trainer: Mapping[str, Any]) -> int:
    """Bytes of a training state's tensors."""
    return sum(tensor.nbytes for tensor in trainer["tensors"].values())
