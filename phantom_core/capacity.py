"""What a plan asks of a cluster, held against what the cluster has: ranks and memory. Torch-free."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from phantom_core.cost import MemoryEstimate, arm_cost, data_bytes
from phantom_core.located import LocatedArm
from phantom_core.plan import Plan
from phantom_core.problems import SpecProblem
from phantom_core.task_rows import training_rows
from phantom_core.task_shapes import task_shape


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
    has_triton: bool | None = None
    """Whether Triton is installed where ranks run; None if unknown."""


def device_for(plan: Plan, capacity: Capacity) -> Literal["cpu", "cuda"]:
    """Where a plan's ranks run: `auto` takes GPUs if there are enough for the largest arm."""
    if plan.spec.resources.device != "auto":
        return plan.spec.resources.device
    return "cuda" if capacity.gpus >= plan.world_size else "cpu"


def updates_in_one_pass(plan: Plan, capacity: Capacity | None) -> bool | None:
    """Whether a plan's ranks have the kernels that update bfloat16 weights in one pass: on GPUs, with Triton.

    Args:
        plan: What is to run.
        capacity: Of the cluster; None if unknown.

    Returns:
        None where that can't be known.
    """
    device = plan.spec.resources.device if capacity is None else device_for(plan, capacity)
    if device == "cpu":
        return False
    return None if capacity is None else capacity.has_triton


def rank_problems(plan: Plan, capacity: Capacity) -> Iterator[SpecProblem]:
    """Arms with more ranks than the cluster has places for."""
    resources = plan.spec.resources
    on_gpus = device_for(plan, capacity) == "cuda"
    # The sliver keeps 0.3 cores at 0.1 each from being 2.
    places = capacity.gpus if on_gpus else int(capacity.cpus / resources.cpus_per_rank + 1e-9)
    for index, arm in enumerate(plan.spec.arms):  # controls have as many ranks as what they control
        p = arm.world_size
        if p <= places:
            continue
        use = f"use at most {places} ranks, " if places else ""
        if on_gpus:
            message = (
                f"arm {arm.name!r} needs {p} GPUs, one for each rank, but the cluster has {capacity.gpus}; "
                f"{use}more GPUs, or resources.device: cpu"
            )
        else:
            gpus = f" and {capacity.gpus} GPUs" if resources.device == "auto" else ""
            message = (
                f"arm {arm.name!r} needs {p} ranks of {resources.cpus_per_rank:g} CPU cores, but the "
                f"cluster has {capacity.cpus:g} cores{gpus}; {use}or lower resources.cpus_per_rank"
            )
        yield SpecProblem(field=f"arms.{index}.world_size", value=p, limit=places, message=message)


def memory_problems(plan: Plan, arms: Sequence[LocatedArm], capacity: Capacity) -> list[SpecProblem]:
    """Arms whose estimated memory the cluster does not have; of an arm and its controls the greediest.

    Where it is unknown whether GPUs' ranks have Triton, what fits only with it is worth a warning.
    """
    one_pass = updates_in_one_pass(plan, capacity)
    found = _too_large(plan, arms, capacity, one_pass=one_pass is not False)
    if one_pass is not None:
        return list(found.values())
    without = _too_large(plan, arms, capacity, one_pass=False)
    return [
        *found.values(),
        *(_only_with_triton(problem) for index, problem in without.items() if index not in found),
    ]


def _only_with_triton(problem: SpecProblem) -> SpecProblem:
    message = f"unless its ranks have Triton, {problem.message}; or install triton where they run"
    return problem.model_copy(update={"message": message, "severity": "warning"})


def _too_large(
    plan: Plan, arms: Sequence[LocatedArm], capacity: Capacity, *, one_pass: bool
) -> dict[int, SpecProblem]:
    """By the index of the user's arm."""
    on_gpus = device_for(plan, capacity) == "cuda"
    has = capacity.gpu_memory_bytes if on_gpus else capacity.cpu_memory_bytes
    if has is None:
        return {}
    task = plan.spec.task
    shape, rows, placement = task_shape(task), training_rows(task), task.feature_placement
    greediest: dict[int, tuple[int, SpecProblem]] = {}
    for arm in arms:
        p = arm.planned.arm.world_size
        memory = arm_cost(arm.planned, shape, placement, one_pass=one_pass).memory
        data = 0 if rows is None else data_bytes(rows, shape, placement, p)
        needed = (memory.peak_bytes + data) * (1 if on_gpus else p)
        if needed <= max(has, greediest[arm.index][0] if arm.index in greediest else 0):
            continue
        where = "its GPU" if on_gpus else f"the hosts, {p} ranks together"
        problem = SpecProblem(
            field=_largest(arm, memory, data),
            value=needed,
            limit=has,
            message=(
                f"{arm.words} needs about {_size(needed)} of memory on {where}; there are {_size(has)} "
                f"(estimate for one rank: weights, gradients and optimizer {_size(memory.state_bytes)}, "
                f"activations {_size(memory.activations_bytes + memory.transient_bytes)}, data "
                f"{_size(data)}); use a smaller width, depth or batch size, fewer rows, or more ranks"
            ),
        )
        greediest[arm.index] = needed, problem
    return {index: problem for index, (_, problem) in greediest.items()}


def _largest(arm: LocatedArm, memory: MemoryEstimate, data: int) -> str:
    parts = {
        arm.field("model", "width"): memory.state_bytes,
        arm.field("training", "batch_size"): memory.activations_bytes + memory.transient_bytes,
        "task": data,
    }
    return max(parts, key=lambda field: parts[field])


def _size(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB" if size >= 2**27 else f"{size / 2**20:,.2f} MiB"
