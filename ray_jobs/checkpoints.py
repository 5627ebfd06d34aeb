"""What a long run has reached, kept on its ranks' hosts, so that another attempt at it goes on from there.

Saved between two windows, never inside one. Every rank writes its own part; a run goes on from the latest step that
all of its ranks have, of the same arm, seed and boards. Where there is none (other hosts, other boards, a full disk)
it begins anew. Whole files or none: a rank killed while it saves leaves what was there before.
"""

import hashlib
import json
import logging
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from phantom_core.plan import PlannedArm
from phantom_core.protocol import AssignedRun, Carried, DeviceInfo
from ray_jobs.ranks import Team
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
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._experiment_id = experiment_id
        self._run = run
        self._identity = identity
        self._team = team
        self._interval_s = interval_s
        self._clock_s = clock_s
        self._saved_s = clock_s()

    def is_due(self) -> bool:
        """Whether to save now; all ranks must ask, and rank 0's clock decides."""
        if self._interval_s is None:
            return False
        return self._team.from_first(self._clock_s() - self._saved_s >= self._interval_s)

    def save(self, reached: Reached) -> None:
        """Keeps this rank's part; one that can't be kept is told in the log, and training goes on."""
        try:
            folder = _folder(self._experiment_id)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(self._file(folder, reached.step), self._packed(reached))
            for step in self._steps()[:-KEPT]:
                self._file(folder, step).unlink(missing_ok=True)
        except (OSError, RuntimeError) as error:  # torch wraps a full disk in the latter
            log.warning("run %s: step %d could not be saved: %s", self._run.run_id, reached.step, error)
        self._saved_s = self._clock_s()

    def latest(self) -> Reached | None:
        """What to go on from, the same step on all ranks, which must all ask; None if there is nothing."""
        if self._interval_s is None:
            return None
        found = {step: reached for step in self._steps() if (reached := self._read(step)) is not None}
        common = set.intersection(*map(set, self._team.gather(sorted(found))))
        return found[max(common)] if common else None

    def forget(self) -> None:
        """Removes this rank's part: the run has ended."""
        folder = _folder(self._experiment_id)
        for step in self._steps():
            self._file(folder, step).unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()  # unless another rank's or run's is there

    def _packed(self, reached: Reached) -> dict[str, Any]:
        told = {
            "identity": self._identity,
            "step": reached.step,
            "spent": asdict(reached.spent),
            "own": asdict(reached.own),
            "train_loss": reached.train_loss,
            "evaluation_loss": reached.evaluation_loss,
            "carried": [each.model_dump() for each in reached.carried],
        }
        # Text and tensors, so that reading it back can run nothing.
        return {"told": json.dumps(told), "trainer": dict(reached.trainer)}

    def _read(self, step: int) -> Reached | None:
        try:
            saved = torch.load(
                self._file(_folder(self._experiment_id), step), map_location="cpu", weights_only=True
            )
            told = json.loads(saved["told"])
            if told["identity"] != self._identity:
                return None
            return Reached(
                step=told["step"],
                spent=Spent(**told["spent"]),
                own=Spent(**told["own"]),
                train_loss=told["train_loss"],
                evaluation_loss=told["evaluation_loss"],
                carried=tuple(Carried(**each) for each in told["carried"]),
                trainer=saved["trainer"],
            )
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, pickle.UnpicklingError) as error:
            log.warning("run %s: what was saved of step %d can't be read: %s", self._run.run_id, step, error)
            return None

    def _steps(self) -> list[int]:
        """Steps that this rank has saved, in order."""
        names = _folder(self._experiment_id).glob(f"{self._run.run_id}.rank-{self._team.rank}.*.pt")
        return sorted(int(name.name.split(".")[-2]) for name in names)

    def _file(self, folder: Path, step: int) -> Path:
        return folder / f"{self._run.run_id}.rank-{self._team.rank}.{step}.pt"


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
    return Path(tempfile.gettempdir()) / "ghostwatt-checkpoints"


def _folder(experiment_id: str) -> Path:
    return _base() / experiment_id


def _write(file: Path, content: dict[str, Any]) -> None:
    unfinished = file.with_suffix(".unfinished")
    try:
        with unfinished.open("wb") as stream:
            torch.save(content, stream)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(file)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
