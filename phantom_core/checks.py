"""What only makes sense together: shapes, controls, recipe and resources of a whole plan. Torch-free.

`spec` refuses fields that are wrong by themselves; this looks at a plan, in which every arm is resolved.
A problem names the field (a dotted path into the spec), its value, the limit and the way out. Errors stop
an experiment from being accepted; warnings are said beside it.
"""

from collections.abc import Iterator

from phantom_core.capacity import Capacity, device_for, memory_problems, rank_problems
from phantom_core.cost import break_even_ghosts, frugal_world_size
from phantom_core.located import LocatedArm, located_arms
from phantom_core.plan import Plan
from phantom_core.problems import SpecError, SpecProblem, problems_of
from phantom_core.run_checks import measurement_problems, stop_rule_problems
from phantom_core.spec import LowRankArm, PhantomArm, StopAtSteps, Task
from phantom_core.task_rows import training_rows
from phantom_core.task_shapes import task_shape

__all__ = ["Capacity", "SpecError", "SpecProblem", "check", "device_for", "ensure", "problems_of"]


def check(plan: Plan, capacity: Capacity | None = None) -> list[SpecProblem]:
    """Everything that is wrong with a plan, or worth knowing before it runs.

    Args:
        plan: The plan, with its controls.
        capacity: What the cluster has; None skips the checks that need it.

    Returns:
        Problems, each once, errors and warnings mixed.
    """
    problems: list[SpecProblem] = []
    sound: list[LocatedArm] = []
    for arm in located_arms(plan):
        found = [
            *_shapes(arm, plan.spec.task),
            *_batch(arm, plan.spec.task),
            *_optimizer(arm),
            *_precision(arm, plan, capacity),
        ]
        problems += found
        if not any(problem.severity == "error" for problem in found):
            sound.append(arm)
    problems += _controls(plan)
    problems += stop_rule_problems(plan)
    problems += measurement_problems(plan)
    if capacity is not None:
        problems += rank_problems(plan, capacity)
        problems += memory_problems(plan, sound, capacity)
    return list(dict.fromkeys(problems))


def ensure(plan: Plan, capacity: Capacity | None = None) -> list[SpecProblem]:
    """As `check`, but errors are raised.

    Args:
        plan: The plan, with its controls.
        capacity: What the cluster has; None skips the checks that need it.

    Returns:
        The warnings.

    Raises:
        SpecError: The plan can't run as it is.
    """
    problems = check(plan, capacity)
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        raise SpecError(errors)
    return problems


def _shapes(arm: LocatedArm, task: Task) -> Iterator[SpecProblem]:
    planned, p, n = arm.planned.arm, arm.planned.arm.world_size, arm.planned.model.width
    if n % p:
        yield SpecProblem(
            field=arm.field("model", "width"),
            value=n,
            limit=p,
            message=(
                f"width = {n} is not divisible by the {p} ranks of {arm.words}; nearest widths that are: "
                f"{_nearest(n, p)}"
            ),
        )
    features = task_shape(task).features
    if task.feature_placement == "split" and features % p:
        yield SpecProblem(
            field="task.feature_placement",
            value="split",
            limit=p,
            message=(
                f"{features} features can't be split over the {p} ranks of {arm.words}; set "
                f"feature_placement: whole, or use {_nearest(features, p)} features"
            ),
        )
    if isinstance(planned, PhantomArm) and n % p == 0:
        yield from _ghosts(f"arms.{arm.index}", n, p, planned.ghosts)
    if isinstance(planned, LowRankArm) and not arm.planned.control_of:
        yield from _low_rank(f"arms.{arm.index}.rank", n, planned.rank)


def _ghosts(path: str, n: int, p: int, k: int) -> Iterator[SpecProblem]:
    m, pays_below = n // p, break_even_ghosts(n, p)
    if k >= m:
        pays = f" (fewer weights than tensor parallelism below k = {pays_below:g})" if p > 1 else ""
        way_out = (
            f"use 1 to {m - 1}{pays}" if m > 1 else "a rank with one neuron has none to save; widen the model"
        )
        yield SpecProblem(
            field=f"{path}.ghosts",
            value=k,
            limit=m - 1,
            message=(
                f"ghosts = {k} is not fewer than the n / p = {n} / {p} = {m} neurons of a rank; {way_out}"
            ),
        )
    elif p == 1:
        yield SpecProblem(
            field=f"{path}.ghosts",
            value=k,
            limit=None,
            message=(
                f"ghosts = {k}, but one rank has nobody to send to and is dense; set world_size to 2 or more"
            ),
            severity="warning",
        )
    elif k >= pays_below:
        yield SpecProblem(
            field=f"{path}.ghosts",
            value=k,
            limit=pays_below,
            message=(
                f"ghosts = {k} has no fewer weights and FLOPs than tensor parallelism, which begins at k = "
                f"m (1 - 1/p) = {pays_below:g}; it sends fewer bytes up to k = {m - 1}"
            ),
            severity="warning",
        )
    elif p > (best := frugal_world_size(n, k)):
        yield SpecProblem(
            field=f"{path}.world_size",
            value=p,
            limit=round(best, 2),
            message=(
                f"{p} ranks of width {n} with {k} ghosts are past p = sqrt(n / k) = {best:.3g}, where all "
                "ranks together have the fewest weights; use fewer ranks, fewer ghosts or a wider model"
            ),
            severity="warning",
        )


def _low_rank(field: str, n: int, r: int) -> Iterator[SpecProblem]:
    if r > n:
        message = f"rank = {r} is more than a weight of width {n} can have; use at most {n}"
        yield SpecProblem(field=field, value=r, limit=n, message=message)
    elif 2 * r >= n:
        message = (
            f"rank = {r} has no fewer weights (2 n r) than a dense layer (n^2); use fewer than {n / 2:g}"
        )
        yield SpecProblem(field=field, value=r, limit=n / 2, message=message, severity="warning")


def _batch(arm: LocatedArm, task: Task) -> Iterator[SpecProblem]:
    rows, batch = training_rows(task), arm.planned.training.batch_size
    if rows is not None and batch > rows:
        yield SpecProblem(
            field=arm.field("training", "batch_size"),
            value=batch,
            limit=rows,
            message=f"batch_size = {batch} is more than the task's {rows} training rows; use at most {rows}",
        )


def _optimizer(arm: LocatedArm) -> Iterator[SpecProblem]:
    training = arm.planned.training
    if training.optimizer == "adamw" and training.momentum:
        yield SpecProblem(
            field=arm.field("training", "momentum"),
            value=training.momentum,
            limit=0,
            message=f"momentum = {training.momentum:g} is SGD's; adamw does not use it; remove it or use sgd",
            severity="warning",
        )
    steps = training.stop.steps if isinstance(training.stop, StopAtSteps) else training.stop.max_steps
    if training.schedule.warmup_steps >= steps:
        yield SpecProblem(
            field=arm.field("training", "schedule") + ".warmup_steps",
            value=training.schedule.warmup_steps,
            limit=steps,
            message=(
                f"warmup_steps = {training.schedule.warmup_steps} outlasts a run of at most {steps} steps, "
                "whose learning rate never reaches its peak; use fewer"
            ),
            severity="warning",
        )


def _precision(arm: LocatedArm, plan: Plan, capacity: Capacity | None) -> Iterator[SpecProblem]:
    model = arm.planned.model
    if not model.tf32:
        return
    field = arm.field("model", "tf32")
    if model.dtype != "float32":
        yield SpecProblem(
            field=field,
            value=True,
            limit="float32",
            message=(
                f"tf32 = true is about float32 matrix products, but {arm.words} computes in {model.dtype}; "
                "set tf32: false or dtype: float32 there"
            ),
        )
    elif capacity is not None and device_for(plan, capacity) == "cpu":
        yield SpecProblem(
            field=field,
            value=True,
            limit=None,
            message=(
                f"tf32 = true changes nothing on CPUs, which {arm.words} runs on: they compute in full float32"
            ),
            severity="warning",
        )


def _controls(plan: Plan) -> Iterator[SpecProblem]:
    places = {arm.name: (index, arm) for index, arm in enumerate(plan.spec.arms)}
    for problem in plan.control_problems:
        index, arm = places[problem.arm]
        yield SpecProblem(
            field=f"arms.{index}.ghosts",
            value=arm.ghosts if isinstance(arm, PhantomArm) else None,
            limit=None,
            message=f"no {problem.control} control for arm {problem.arm!r}: {problem.message}",
        )


def _nearest(number: int, divisor: int) -> str:
    below, above = number // divisor * divisor, (number // divisor + 1) * divisor
    return f"{below} or {above}" if below else f"{above}"
