"""When a run ends and how it is measured: what of it can't be, or leads to no verdict. Torch-free."""

from collections.abc import Iterator

from phantom_core.plan import Plan
from phantom_core.problems import SpecProblem
from phantom_core.spec import StopAtSeconds, StopAtSteps

FEWEST_ROUNDS = 3
"""Rounds below which a paired bootstrap interval says nothing."""
SHORTEST_WINDOW_S = 1.0
"""Measured windows that are shorter are refused a verdict."""


def stop_rule_problems(plan: Plan) -> Iterator[SpecProblem]:
    """What of the stop rule contradicts its own limits, the evaluations or the deadline.

    Args:
        plan: The plan, with its controls.
    """
    training = plan.spec.training
    stop = training.stop
    if isinstance(stop, StopAtSteps) and stop.steps > stop.max_steps:
        yield SpecProblem(
            field="training.stop.steps",
            value=stop.steps,
            limit=stop.max_steps,
            message=(
                f"steps = {stop.steps} is above max_steps = {stop.max_steps}; raise max_steps or lower steps"
            ),
        )
    if isinstance(stop, StopAtSeconds) and stop.seconds > stop.max_seconds:
        yield SpecProblem(
            field="training.stop.seconds",
            value=stop.seconds,
            limit=stop.max_seconds,
            message=(
                f"seconds = {stop.seconds:g} is above max_seconds = {stop.max_seconds:g}; raise max_seconds "
                "or lower seconds"
            ),
        )
    if not isinstance(stop, StopAtSteps) and training.evaluation_interval > stop.max_steps:
        yield SpecProblem(
            field="training.evaluation_interval",
            value=training.evaluation_interval,
            limit=stop.max_steps,
            message=(
                f"the {stop.kind} rule is looked at every {training.evaluation_interval} steps, but a run "
                f"ends after max_steps = {stop.max_steps}; lower evaluation_interval or raise max_steps"
            ),
        )
    deadline_s = plan.spec.resources.deadline_s
    if stop.max_seconds > deadline_s:
        yield SpecProblem(
            field="resources.deadline_s",
            value=deadline_s,
            limit=stop.max_seconds,
            message=(
                f"deadline_s = {deadline_s:g} ends the whole experiment, but one run may take max_seconds = "
                f"{stop.max_seconds:g}; raise deadline_s or lower max_seconds"
            ),
            severity="warning",
        )


def measurement_problems(plan: Plan) -> Iterator[SpecProblem]:
    """What of the measurement weakens a verdict, or can't be made on the device that is asked for.

    Args:
        plan: The plan, with its controls.
    """
    measurement = plan.spec.measurement
    if measurement.rounds_planned < FEWEST_ROUNDS and len(plan.arms) > 1:
        yield SpecProblem(
            field="measurement.rounds",
            value=measurement.rounds_planned,
            limit=FEWEST_ROUNDS,
            message=(
                f"rounds = {measurement.rounds_planned} gives no interval to judge a difference by; use at least "
                f"{FEWEST_ROUNDS}"
            ),
            severity="warning",
        )
    if measurement.gpu_scope == "module" and plan.spec.resources.device == "cpu":
        yield SpecProblem(
            field="measurement.gpu_scope",
            value=measurement.gpu_scope,
            limit="gpu",
            message=(
                "gpu_scope = module is of a superchip's GPUs, and resources.device = cpu uses none; remove it: what a "
                "processor's energy covers stands beside it as its scope"
            ),
        )
    if measurement.minimum_window_s < SHORTEST_WINDOW_S:
        yield SpecProblem(
            field="measurement.minimum_window_s",
            value=measurement.minimum_window_s,
            limit=SHORTEST_WINDOW_S,
            message=(
                f"minimum_window_s = {measurement.minimum_window_s:g} allows windows shorter than "
                f"{SHORTEST_WINDOW_S:g} s, from which no verdict is drawn; use at least "
                f"{SHORTEST_WINDOW_S:g}"
            ),
            severity="warning",
        )
