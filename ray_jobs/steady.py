"""How many more seconds an arm must run after training so that joules per step are known well enough."""

from phantom_core.flags import blocking
from phantom_core.meters.windows import window_flags
from phantom_core.spec import MeasurementSpec, StopRule
from ray_jobs.run_state import State
from ray_jobs.spent import Spent

MARGIN = 0.1
"""Share of their minimum by which steady windows are aimed above it, since the step time is only known roughly."""
MOST_WINDOWS = 5
"""Tries to make one long enough, where steps become quicker meanwhile; their steps and energies are added up."""
LONGEST_S = 600.0
"""No steady window is aimed at more, whatever precision was asked for."""


def wanted_s(measurement: MeasurementSpec, training: Spent, steady: Spent) -> float:
    """Seconds that the next steady window is to last; 0 if joules per step are known well enough.

    They are not where training was too short, or cut by evaluations into windows too short for the meter.

    Args:
        measurement: Least seconds, and precision.
        training: What the training windows took, over all ranks.
        steady: The same of the steady windows so far.
    """
    minimum_s, precision = measurement.minimum_window_s, measurement.energy_precision
    if steady.windows:
        missing_s = max(minimum_s - steady.seconds, steady.missing_s(precision))
    else:
        missing_s = training.missing_s(precision, anew=True)
        known = training.seconds >= minimum_s and training.energy_mj is not None
        if not known or missing_s:
            missing_s = max(minimum_s, missing_s)
    return min(missing_s, LONGEST_S)


def with_margin_s(seconds: float, measurement: MeasurementSpec) -> float:
    """Seconds to aim at: more by a share of all, since what is left can be so little that the next try falls short."""
    return seconds + MARGIN * max(seconds, measurement.minimum_window_s)


def figure_mj(rule: StopRule, state: State, steady: Spent) -> float | None:
    """What comparisons rest on, as far as ranks can tell: energy to the target if there is one, else per step.

    Args:
        rule: When training stops.
        state: Where it ended.
        steady: What the steady windows took, over all ranks.

    Returns:
        Millijoules; None if unknown, not positive, or of windows too short for a verdict.
    """
    training = state.spent
    if rule.kind != "target_loss":
        rests_on = steady if steady.steps else training
        figure = rests_on.per_step_mj
    elif not state.has_reached(rule):
        return None
    elif training.energy_mj is None and steady.per_step_mj is not None:
        # As the service does: training's own windows were too short for the meter.
        rests_on, figure = steady, steady.per_step_mj * state.step
    else:
        rests_on, figure = training, training.energy_mj
    refused = blocking(window_flags(rests_on.seconds))
    return None if refused or figure is None or not figure > 0 else figure
