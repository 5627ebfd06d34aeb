"""What a job tells of its experiment as a whole: that it began, goes on, and ended."""

from typing import Literal

from phantom_core.protocol.devices import DeviceInfo, RankInfo
from phantom_core.protocol.words import Reason, Wire


class ExperimentStarted(Wire):
    """The worker group reported: the experiment is running."""

    kind: Literal["experiment_started"] = "experiment_started"
    backend: Literal["nccl", "gloo"]
    """Process-group backend."""
    ranks: tuple[RankInfo, ...]
    """Every rank."""
    devices: tuple[DeviceInfo, ...]
    """Every distinct device."""
    versions: dict[str, str]
    """Python, torch, ray, CUDA, NCCL, ghostwatt."""
    data_digest: str | None = None
    """Tells the task's rows from others; None from a job that doesn't say."""


class Progress(Wire):
    """A sign of life and what is being done."""

    kind: Literal["progress"] = "progress"
    message: str
    """One line."""
    done: int
    """Runs ended."""
    total: int
    """Runs assigned."""


class Alive(Wire):
    """All ranks have lately been heard; said by one of them while nothing else may be said for long."""

    kind: Literal["alive"] = "alive"
    ranks: int
    """How many they are."""


class ExperimentFinished(Wire):
    """The job made all its runs, or can't go on."""

    kind: Literal["experiment_finished"] = "experiment_finished"
    outcome: Literal["succeeded", "failed", "cancelled"]
    """Final state that the job asks for."""
    reason: Reason | None = None
    """Why, unless it succeeded."""
    message: str | None = None
    """One sentence for a person."""
