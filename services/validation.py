"""What a spec would need and cost, without running it; and whether it would be accepted."""

from phantom_core.capacity import updates_in_one_pass
from phantom_core.checks import Capacity, SpecProblem, check
from phantom_core.cost import arm_cost
from phantom_core.plan import Plan, PlannedArm, make_plan
from phantom_core.spec import ExperimentSpec, HardLimits, StopAtSeconds
from phantom_core.task_shapes import task_shape
from services.errors import Problem, SpecError
from services.views import ArmCostView, ValidationView

MOST_RUNS = 10_000
"""Runs in one experiment; more would keep the database from everyone else while they are written."""

NO_PROFILE = "no profile of this device has been measured, so there is nothing to predict energy from"
"""Why a prediction is missing."""


def accept(plan: Plan, capacity: Capacity | None) -> list[ArmCostView]:
    """Checks a plan.

    Args:
        plan: What to run.
        capacity: What the cluster has; None skips the checks that need it.

    Returns:
        What each of its arms costs by the formulas, in order.

    Raises:
        SpecError: It can't be run as it is.
    """
    problems, _ = findings(plan, capacity)
    if problems:
        raise SpecError(problems)
    return costs_of(plan, capacity)


def validate(spec: ExperimentSpec, capacity: Capacity | None = None) -> ValidationView:
    """What a spec would need and cost, without running it.

    Args:
        spec: What to look at.
        capacity: What the cluster has; None skips the checks that need it.
    """
    plan = make_plan(spec)
    problems, warnings = findings(plan, capacity)
    rounds = spec.measurement.rounds_planned
    return ValidationView(
        valid=not problems,
        problems=tuple(problems),
        warnings=tuple(warnings),
        baseline=plan.baseline,
        # Formulas need shapes that divide; where they don't, the problems say so instead.
        arms=() if problems else tuple(costs_of(plan, capacity)),
        rounds=rounds,
        runs=rounds * len(plan.arms),
        ranks=plan.world_size,
        longest_s=min(
            rounds * sum(_longest_s(planned.training.stop) for planned in plan.arms),
            spec.resources.deadline_s,
        ),
        deadline_s=spec.resources.deadline_s,
        predicted_energy_mj=None,
        predicted_energy_reason=NO_PROFILE,
    )


def findings(plan: Plan, capacity: Capacity | None) -> tuple[list[Problem], list[Problem]]:
    """What forbids a plan, and what is worth knowing before it runs."""
    found = check(plan, capacity)
    return (
        [*_too_many_runs(plan), *(_problem(problem) for problem in found if problem.severity == "error")],
        [_problem(problem) for problem in found if problem.severity == "warning"],
    )


def costs_of(plan: Plan, capacity: Capacity | None) -> list[ArmCostView]:
    """What each arm costs by the formulas, in order.

    Args:
        plan: What to run; its shapes divide.
        capacity: What the cluster has; None if unknown. Memory depends on where ranks run: where that can't be known,
            it is the larger of what it may be.
    """
    one_pass = updates_in_one_pass(plan, capacity) is True
    return [_cost_of(planned, plan.spec, one_pass) for planned in plan.arms]


def _cost_of(planned: PlannedArm, spec: ExperimentSpec, one_pass: bool) -> ArmCostView:
    cost = arm_cost(planned, task_shape(spec.task), spec.task.feature_placement, one_pass=one_pass)
    return ArmCostView(
        arm=planned.name,
        strategy=planned.arm.strategy,
        world_size=planned.arm.world_size,
        width=planned.model.width,
        control_of=planned.control_of,
        parameters=cost.parameters,
        flops_per_step=cost.step_flops,
        bytes_sent_per_step=cost.bytes_sent,
        memory_per_rank_bytes=cost.memory.peak_bytes,
        energy_reason=NO_PROFILE,
    )


def _too_many_runs(plan: Plan) -> list[Problem]:
    rounds, arms = plan.spec.measurement.rounds_planned, len(plan.arms)
    if rounds * arms <= MOST_RUNS:
        return []
    most = MOST_RUNS // arms
    return [
        Problem(
            field="measurement.rounds",
            value=str(rounds),
            limit=str(most),
            message=(
                f"{rounds} rounds of {arms} arms make {rounds * arms:,} runs; at most {MOST_RUNS:,} fit into one "
                f"experiment: use {most} rounds or fewer, or fewer arms"
            ),
        )
    ]


def _problem(problem: SpecProblem) -> Problem:
    return Problem(
        field=problem.field,
        message=problem.message,
        value=None if problem.value is None else str(problem.value),
        limit=None if problem.limit is None else str(problem.limit),
    )


def _longest_s(stop: HardLimits) -> float:
    return min(stop.seconds, stop.max_seconds) if isinstance(stop, StopAtSeconds) else stop.max_seconds
