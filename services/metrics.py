"""The metrics that arms are compared in: where each is found, what it is called, which flags it minds."""

from dataclasses import dataclass
from enum import Enum, auto

from phantom_core.flags import Flag
from services.tables import Run


class Kind(Enum):
    """What a metric measures."""

    ENERGY = auto()
    TIME = auto()
    LOSS = auto()


_SHORT = frozenset({Flag.SHORT_WINDOW, Flag.SHORT_WINDOW_REFUSED})
_TIME = frozenset({Flag.BOARD_SHARED, Flag.THROTTLED, Flag.POWER_CAPPED, Flag.GRAPH_FALLBACK})
"""Flags of a run that concern how long it took; those of a pair are raised where it is made."""


@dataclass(frozen=True)
class Metric:
    """One metric."""

    name: str
    """Column of the run."""
    words: str
    """What people call it."""
    kind: Kind
    """What it measures."""
    of_target: bool = False
    """Whether it exists only where there is a target loss."""

    def minds(self, flag: str) -> bool:
        """Whether a run's flag says something about this metric.

        Whether windows are too short is judged anew for each metric by those that it rests on, and an energy
        is unknown where its own value is missing, not where another's is.
        """
        if self.kind is Kind.LOSS:
            return False
        if self.kind is Kind.TIME:
            return flag in _TIME
        return flag not in _SHORT and flag != Flag.ENERGY_UNKNOWN

    def window_s(self, run: Run) -> float | None:
        """Seconds of the windows that the metric rests on; None if unknown."""
        if self.of_target:
            return run.seconds_to_target
        if self.name in {"energy_per_step_mj", "energy_per_sample_mj"} and run.steady_s is not None:
            return run.steady_s
        return run.training_s


METRICS: tuple[Metric, ...] = (
    Metric("energy_to_target_mj", "energy to the target loss", Kind.ENERGY, of_target=True),
    Metric("energy_per_step_mj", "energy per step", Kind.ENERGY),
    Metric("energy_per_sample_mj", "energy per row", Kind.ENERGY),
    Metric("energy_training_mj", "energy of training", Kind.ENERGY),
    Metric("seconds_to_target", "time to the target loss", Kind.TIME, of_target=True),
    Metric("seconds_per_step", "time per step", Kind.TIME),
    Metric("final_evaluation_loss", "final evaluation loss", Kind.LOSS),
)
"""All of them, in the order of answers."""
