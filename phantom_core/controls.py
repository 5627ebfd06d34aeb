"""The controls of a phantom arm: what tells its saving from that of simply having a smaller model.

For each phantom arm (width n, p ranks, k ghosts): a tensor arm of the same width; a tensor arm of a
width n' with as many parameters; a block-diagonal arm (no ghosts, no communication); a low-rank arm
with as many parameters. An arm that the user already has, or that two phantom arms share, is made once.
"""

import math
from collections.abc import Callable, Sequence

from phantom_core.cost import arm_parameters, break_even_ghosts
from phantom_core.spec import (
    MAX_WIDTH,
    Arm,
    BlockDiagonalArm,
    ExperimentSpec,
    LowRankArm,
    ModelOverrides,
    ModelSpec,
    PhantomArm,
    SpecModel,
    TensorArm,
    TrainingSpec,
)
from phantom_core.task_shapes import task_shape

MATCH_TOLERANCE = 0.01
"""Parameter-matched means: within this share of the phantom arm's parameters."""
_SUGGESTION_TRIES = 4_096

Resolved = tuple[Arm, ModelSpec, TrainingSpec]
"""An arm with its model and recipe resolved."""


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
    spec: ExperimentSpec, arms: Sequence[Resolved]
) -> tuple[list[Control], tuple[ControlProblem, ...]]:
    """The controls of every phantom arm, without those that exist already.

    Phantom arms that can't run as they are (width not divisible, ghosts not fewer than n / p) get none:
    `checks` names that first. Those on one rank exchange nothing and are dense, so there is nothing to
    control for.

    Args:
        spec: The experiment.
        arms: The user's arms with their resolved models and recipes.

    Returns:
        The arms to add, and the controls that could not be made.
    """
    taken = {arm.name for arm, _, _ in arms}
    existing = {_identity(*resolved) for resolved in arms}
    made: dict[tuple[str, ...], Control] = {}
    problems: list[ControlProblem] = []
    for arm, model, training in arms:
        p = arm.world_size
        if not isinstance(arm, PhantomArm) or p == 1 or model.width % p or arm.ghosts >= model.width // p:
            continue
        candidates, failed = _controls_of(arm, model, spec)
        problems += failed
        for candidate, candidate_model in candidates:
            identity = _identity(candidate, candidate_model, training)
            if identity in existing:
                continue
            earlier = made.get(identity)
            if earlier is None:
                name = _free_name(candidate.name, taken)
                taken.add(name)
                named = candidate.model_copy(update={"name": name})
                made[identity] = Control(arm=named, control_of=(arm.name,))
            elif arm.name not in earlier.control_of:
                made[identity] = Control(arm=earlier.arm, control_of=(*earlier.control_of, arm.name))
    return list(made.values()), tuple(problems)


def _controls_of(
    phantom: PhantomArm, model: ModelSpec, spec: ExperimentSpec
) -> tuple[list[tuple[Arm, ModelSpec]], list[ControlProblem]]:
    p, n, k = phantom.world_size, model.width, phantom.ghosts
    overrides, training = phantom.model, phantom.training
    # 2 n r weights equal n^2 / p + k n p at this r.
    rank = max(1, round((n / p + k * p) / 2))
    arms: list[tuple[Arm, ModelSpec]] = [
        (TensorArm(name=f"tensor n={n}", world_size=p, model=overrides, training=training), model),
        (
            BlockDiagonalArm(name=f"block-diagonal n={n}", world_size=p, model=overrides, training=training),
            model,
        ),
        (
            LowRankArm(
                name=f"low-rank n={n} r={rank}", world_size=p, rank=rank, model=overrides, training=training
            ),
            model,
        ),
    ]
    narrow = matched_width(phantom, model, spec)
    if narrow is None:
        return arms, [_unmatched(phantom, model, spec)]
    narrow_overrides: ModelOverrides = overrides.model_copy(update={"width": narrow})
    matched = TensorArm(
        name=f"tensor n={narrow} weights-matched", world_size=p, model=narrow_overrides, training=training
    )
    return [*arms, (matched, model.model_copy(update={"width": narrow}))], []


def matched_width(phantom: PhantomArm, model: ModelSpec, spec: ExperimentSpec) -> int | None:
    """Width n' of the tensor arm with as many parameters; None if none is within 1 %.

    Args:
        phantom: The phantom arm.
        model: Its resolved model.
        spec: The experiment, for its task.

    Returns:
        The nearest width that p and 8 divide and a spec may have, or None.
    """
    wanted = _parameters(phantom, model, spec)
    width, has = _nearest_tensor(phantom, model, spec, wanted)
    return width if abs(has - wanted) <= MATCH_TOLERANCE * wanted else None


def _nearest_tensor(
    phantom: PhantomArm, model: ModelSpec, spec: ExperimentSpec, wanted: int
) -> tuple[int, int]:
    """The width of the tensor arm nearest in parameters, and how many it has."""
    tensor = TensorArm(name="tensor", world_size=phantom.world_size)
    step = math.lcm(phantom.world_size, 8)

    def has(steps: int) -> int:
        return _parameters(tensor, model.model_copy(update={"width": steps * step}), spec)

    below, above = 1, max(2, MAX_WIDTH // step)
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if has(middle) < wanted else (below, middle)
    steps = min((below, above), key=lambda steps: abs(has(steps) - wanted))
    return steps * step, has(steps)


def _unmatched(phantom: PhantomArm, model: ModelSpec, spec: ExperimentSpec) -> ControlProblem:
    n, p, k = model.width, phantom.world_size, phantom.ghosts
    wanted = _parameters(phantom, model, spec)
    width, has = _nearest_tensor(phantom, model, spec, wanted)

    def ghosts_match(ghosts: int) -> bool:
        return matched_width(phantom.model_copy(update={"ghosts": ghosts}), model, spec) is not None

    def width_matches(wider: int) -> bool:
        return matched_width(phantom, model.model_copy(update={"width": wider}), spec) is not None

    nearest = sorted(range(1, n // p), key=lambda other: (abs(other - k), other))[:_SUGGESTION_TRIES]
    # Where no width is wide enough, fewer ghosts than pay anyway are far away.
    ghosts = _first([*nearest, math.ceil(break_even_ghosts(n, p)) - 1], ghosts_match)
    wider = _first(range(n + p, MAX_WIDTH + 1, p)[:_SUGGESTION_TRIES], width_matches)
    ways = [f"ghosts = {ghosts}"] if ghosts else []
    ways += [f"width = {wider}"] if wider else []
    way_out = f"{' or '.join(ways)} can be matched; or set controls: false" if ways else "set controls: false"
    return ControlProblem(
        arm=phantom.name,
        control="parameter-matched tensor",
        message=(
            f"no tensor width divisible by {math.lcm(p, 8)} has within {MATCH_TOLERANCE:.0%} of the "
            f"{wanted:,} parameters of width = {n}, ghosts = {k} (nearest: {width} with {has:,}, "
            f"{100 * (has - wanted) / wanted:+.1f} %); {way_out}"
        ),
    )


def _first(candidates: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    return next((candidate for candidate in candidates if fits(candidate)), None)


def _parameters(arm: Arm, model: ModelSpec, spec: ExperimentSpec) -> int:
    return arm_parameters(arm, model, task_shape(spec.task), spec.task.feature_placement)


def _identity(arm: Arm, model: ModelSpec, training: TrainingSpec) -> tuple[str, ...]:
    settings = arm.model_dump_json(exclude={"name", "model", "training"})
    return settings, model.model_dump_json(), training.model_dump_json()


def _free_name(name: str, taken: set[str]) -> str:
    candidate, number = name, 2
    while candidate in taken:
        candidate, number = f"{name} {number}", number + 1
    return candidate
