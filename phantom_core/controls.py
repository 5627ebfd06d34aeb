"""The controls of a phantom arm: what tells its saving from that of simply having a smaller model.

For each phantom arm (width n, p ranks, k ghosts): a tensor arm of the same width; a tensor arm of a
width n' with as many parameters; a block-diagonal arm (no ghosts, no communication); a low-rank arm
with as many parameters. An arm that the user already has, or that two phantom arms share, is made once.
"""

import math
from collections.abc import Callable, Sequence

from phantom_core.spec import (
    Arm,
    BlockDiagonalArm,
    ExperimentSpec,
    LowRankArm,
    ModelOverrides,
    ModelSpec,
    PhantomArm,
    SpecModel,
    TensorArm,
)
from phantom_core.task_shapes import TaskShape, task_shape

MATCH_TOLERANCE = 0.01
"""Parameter-matched means: within this share of the phantom arm's parameters."""


class Control(SpecModel):
    """An added arm."""

    arm: Arm
    """The arm."""
    control_of: tuple[str, ...]
    """Names of the phantom arms that asked for it."""


class ControlProblem(SpecModel):
    """A control that can't be made."""

    arm: str
    """Name of the phantom arm."""
    control: str
    """Which control."""
    message: str
    """What was tried, the limit, and the way out."""


def control_arms(
    spec: ExperimentSpec, arms: Sequence[tuple[Arm, ModelSpec]]
) -> tuple[list[Control], tuple[ControlProblem, ...]]:
    """The controls of every phantom arm, without those that exist already.

    Args:
        spec: The experiment.
        arms: The user's arms with their resolved models.

    Returns:
        The arms to add, and the controls that could not be made.
    """
    shape = task_shape(spec.task)
    taken = {arm.name for arm, _ in arms}
    existing = {_identity(arm, model) for arm, model in arms}
    made: dict[tuple[object, ...], Control] = {}
    problems: list[ControlProblem] = []
    for arm, model in arms:
        if not isinstance(arm, PhantomArm) or arm.world_size == 1 or model.width % arm.world_size:
            continue
        candidates, failed = _controls_of(arm, model, shape)
        problems += failed
        for candidate, candidate_model in candidates:
            identity = _identity(candidate, candidate_model)
            if identity in existing:
                continue
            if identity in made:
                earlier = made[identity]
                made[identity] = Control(arm=earlier.arm, control_of=(*earlier.control_of, arm.name))
                continue
            name = _free_name(candidate.name, taken)
            taken.add(name)
            made[identity] = Control(arm=candidate.model_copy(update={"name": name}), control_of=(arm.name,))
    return list(made.values()), tuple(problems)


def _controls_of(
    phantom: PhantomArm, model: ModelSpec, shape: TaskShape
) -> tuple[list[tuple[Arm, ModelSpec]], list[ControlProblem]]:
    p, n, k = phantom.world_size, model.width, phantom.ghosts
    overrides, training = phantom.model, phantom.training
    arms: list[tuple[Arm, ModelSpec]] = [
        (
            TensorArm(name=f"tensor n={n}", world_size=p, model=overrides, training=training),
            model,
        ),
        (
            BlockDiagonalArm(name=f"block-diagonal n={n}", world_size=p, model=overrides, training=training),
            model,
        ),
    ]
    rank = max(1, round((n / p + k * p) / 2))
    if rank <= n:
        low_rank = LowRankArm(
            name=f"low-rank n={n} r={rank}", world_size=p, rank=rank, model=overrides, training=training
        )
        arms.append((low_rank, model))
    problems = []
    narrow = matched_width(phantom, model, shape)
    if narrow is None:
        problems.append(_unmatched(phantom, model, shape))
    else:
        narrow_overrides: ModelOverrides = overrides.model_copy(update={"width": narrow})
        matched = TensorArm(
            name=f"tensor n={narrow} weights-matched",
            world_size=p,
            model=narrow_overrides,
            training=training,
        )
        arms.append((matched, model.model_copy(update={"width": narrow})))
    return arms, problems


def tensor_parameters(width: int, model: ModelSpec, shape: TaskShape) -> int:
    """Parameters of a dense or tensor-parallel network of that width: F n + L n^2 + n O, and biases."""
    biases = (model.depth + 1) * width + shape.outputs if model.bias else 0
    return shape.features * width + model.depth * width * width + width * shape.outputs + biases


def phantom_parameters(ghosts: int, p: int, model: ModelSpec, shape: TaskShape) -> int:
    """Parameters of a phantom network: hidden layers of p (m^2 + k m + (p - 1) k m) = n m + k n p weights.

    With features split over ranks the input layer is block-diagonal (F n / p weights) in every layout,
    so it leaves the match unchanged but for its width; `split` is handled by the caller's shape.
    """
    n = model.width
    hidden = n * (n // p) + ghosts * n * p
    biases = (model.depth + 1) * n + shape.outputs if model.bias else 0
    return shape.features * n + model.depth * hidden + n * shape.outputs + biases


def matched_width(phantom: PhantomArm, model: ModelSpec, shape: TaskShape) -> int | None:
    """Width n' of the tensor arm with as many parameters, divisible by p and by 8; None if none is within 1 %."""
    p = phantom.world_size
    wanted = phantom_parameters(phantom.ghosts, p, model, shape)
    width = _nearest(lambda n: abs(tensor_parameters(n, model, shape) - wanted), math.lcm(p, 8), model.width)
    off = abs(tensor_parameters(width, model, shape) - wanted) / wanted
    return width if off <= MATCH_TOLERANCE else None


def _nearest(distance: Callable[[int], int], step: int, widest: int) -> int:
    return min(range(step, max(step, 2 * widest) + 1, step), key=distance)


def _unmatched(phantom: PhantomArm, model: ModelSpec, shape: TaskShape) -> ControlProblem:
    p, step = phantom.world_size, math.lcm(phantom.world_size, 8)
    wanted = phantom_parameters(phantom.ghosts, p, model, shape)
    width = _nearest(lambda n: abs(tensor_parameters(n, model, shape) - wanted), step, model.width)
    has = tensor_parameters(width, model, shape)
    others = sorted(range(1, model.width // p), key=lambda k: (abs(k - phantom.ghosts), k))
    better = next(
        (
            k
            for k in others
            if matched_width(phantom.model_copy(update={"ghosts": k}), model, shape) is not None
        ),
        None,
    )
    way_out = f"ghosts = {better} can be matched" if better else "a larger width can be matched"
    return ControlProblem(
        arm=phantom.name,
        control="parameter-matched tensor",
        message=(
            f"no tensor width divisible by {step} has within 1 % of the {wanted:,} parameters of width = "
            f"{model.width}, ghosts = {phantom.ghosts} (nearest: {width} with {has:,}, "
            f"{100 * (has - wanted) / wanted:+.1f} %); {way_out}, or set controls: false"
        ),
    )


def _identity(arm: Arm, model: ModelSpec) -> tuple[object, ...]:
    settings = arm.model_dump(exclude={"name", "model", "training"})
    return (
        tuple(sorted(settings.items())),
        model.model_dump_json(),
        arm.training.model_dump_json(),
    )


def _free_name(name: str, taken: set[str]) -> str:
    candidate, number = name, 2
    while candidate in taken:
        candidate, number = f"{name} {number}", number + 1
    return candidate
