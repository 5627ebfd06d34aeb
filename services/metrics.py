"""The metrics that arms are compared in: where each is found, what it is called, which flags it minds."""

from dataclasses import dataclass
from enum import Enum, auto

from phantom_core.flags import Flag, blocking
from phantom_core.meters.windows import window_flags
from services.states import RunState
from services.tables import Run


class Kind(Enum):
    """What a metric measures."""

    ENERGY = auto()
    TIME = auto()
    LOSS = auto()


_JUDGED_ANEW = frozenset({Flag.SHORT_WINDOW, Flag.SHORT_WINDOW_REFUSED, Flag.IMPRECISE})
_TIME = frozenset(
    {
        Flag.BOARD_SHARED,
        Flag.COMPANY_UNKNOWN,
        Flag.THROTTLED,
        Flag.POWER_CAPPED,
        Flag.CLOCKS_DIFFER,
        Flag.GRAPH_FALLBACK,
        Flag.RESUMED,
    }
)
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
    of_step: bool = False
    """Whether it is of one step, however many rows that holds."""

    def minds(self, flag: str) -> bool:
        """Whether a run's flag says something about this metric.

        Whether windows are too short or their bound too wide is judged anew for each metric by those that it
        rests on, and an energy is unknown where its own value is missing, not where another's is.
        """
        if self.kind is Kind.LOSS:
            return False
        if self.kind is Kind.TIME:
            return flag in _TIME
        if flag == Flag.FROM_STEADY:
            return self.of_target
        return flag not in _JUDGED_ANEW and flag != Flag.ENERGY_UNKNOWN

    def window_s(self, run: Run) -> float | None:
        """Seconds of the windows that the metric rests on; None if unknown."""
        if self.of_target:
            return run.steady_s if Flag.FROM_STEADY in (run.flags or ()) else run.seconds_to_target
        if self.name in {"energy_per_step_mj", "energy_per_sample_mj"} and run.steady_s is not None:
            return run.steady_s
        return run.training_s

    def bound(self, run: Run) -> float | None:
        """Bound on the reading error as a share of the energies that it rests on; None if unknown, or estimated."""
        if self.kind is not Kind.ENERGY or Flag.ESTIMATED in (run.flags or ()):
            return None
        per_step = self.name in {"energy_per_step_mj", "energy_per_sample_mj"}
        if per_step or (self.of_target and Flag.FROM_STEADY in (run.flags or ())):
            bound_mj, energy_mj = run.energy_per_step_uncertainty_mj, run.energy_per_step_mj
        else:
            bound_mj, energy_mj = run.energy_training_uncertainty_mj, run.energy_training_mj
        return bound_mj / energy_mj if bound_mj is not None and energy_mj else None

    def sound_figure(self, run: Run) -> float | None:
        """The run's value, if it can be half of a pair: of a run that succeeded, positive, and unblocked."""
        value: float | None = getattr(run, self.name)
        if run.state != RunState.SUCCEEDED or value is None or not value > 0:
            return None
        flags = {flag for flag in run.flags or () if self.minds(flag)}
        window_s = self.window_s(run)
        if self.kind is Kind.ENERGY and window_s is not None:
            flags.update(window_flags(window_s))
        return None if blocking(flags) else value


METRICS: tuple[Metric, ...] = (
    Metric("energy_to_target_mj", "energy to the target loss", Kind.ENERGY, of_target=True),
    Metric("energy_per_step_mj", "energy per step", Kind.ENERGY, of_step=True),
    Metric("energy_per_sample_mj", "energy per row", Kind.ENERGY),
    Metric("energy_training_mj", "energy of training", Kind.ENERGY),
    Metric("seconds_to_target", "time to the target loss", Kind.TIME, of_target=True),
    Metric("seconds_per_step", "time per step", Kind.TIME, of_step=True),
    Metric("final_evaluation_loss", "final evaluation loss", Kind.LOSS),
)
"""All of them, in the order of answers."""


def metric_named(name: str) -> Metric:
    """The metric of that column.

    Raises:
        KeyError: There is none.
    """
    for metric in METRICS:
        if metric.name == name:
            return metric
    raise KeyError(name)


def primary_metric(stop_kind: str) -> str:
    """What an experiment's verdicts rest on: energy to the target if it has one, else energy per step."""
    return "energy_to_target_mj" if stop_kind == "target_loss" else "energy_per_step_mj"
