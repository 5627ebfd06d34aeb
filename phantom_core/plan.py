"""From a spec to what runs: every arm with its settings resolved, its controls added, its rounds in order.

Torch-free. `make_plan` is deterministic: service, job and researcher get the same plan from one spec.
"""

import hashlib
import random
from collections.abc import Sequence

from phantom_core.controls import ControlProblem, control_arms
from phantom_core.spec import Arm, ExperimentSpec, ModelSpec, SpecModel, TensorArm, TrainingSpec


class PlannedArm(SpecModel):
    """One arm with nothing left to look up."""

    arm: Arm
    """Strategy and its settings."""
    model: ModelSpec
    """The experiment's model with the arm's overrides applied."""
    training: TrainingSpec
    """The experiment's recipe with the arm's overrides applied."""
    control_of: tuple[str, ...] = ()
    """Names of the phantom arms that this arm was added for; empty for the user's own."""

    @property
    def name(self) -> str:
        """The arm's name."""
        return self.arm.name


class ScheduledRun(SpecModel):
    """One arm in one round."""

    round: int
    """From 0."""
    position: int
    """Place in the round's order, from 0."""
    arm: str
    """The arm's name."""
    seed: int
    """Seed of weights and batches; equal for all arms of a round, so that they are paired."""


class Plan(SpecModel):
    """A spec made ready to run."""

    spec: ExperimentSpec
    """As the user wrote it."""
    arms: tuple[PlannedArm, ...]
    """The user's arms in their order, then controls."""
    baseline: str
    """Name of the arm that the others are compared with."""
    control_problems: tuple[ControlProblem, ...] = ()
    """Controls that could not be made, and why; `checks.check` turns them into errors."""

    @property
    def world_size(self) -> int:
        """Ranks of the largest arm; the worker group has as many."""
        return max(planned.arm.world_size for planned in self.arms)

    def arm(self, name: str) -> PlannedArm:
        """The arm of that name.

        Raises:
            KeyError: No arm has that name.
        """
        for planned in self.arms:
            if planned.name == name:
                return planned
        raise KeyError(name)


def make_plan(spec: ExperimentSpec) -> Plan:
    """Resolves every arm of a spec and adds the controls of its phantom arms."""
    planned = [resolve(spec, arm) for arm in spec.arms]
    problems: tuple[ControlProblem, ...] = ()
    if spec.controls:
        controls, problems = control_arms(spec, [(p.arm, p.model, p.training) for p in planned])
        planned += [resolve(spec, control.arm, control.control_of) for control in controls]
    return Plan(
        spec=spec,
        arms=tuple(planned),
        baseline=spec.baseline or default_baseline([p.arm for p in planned]),
        control_problems=problems,
    )


def resolve(spec: ExperimentSpec, arm: Arm, control_of: tuple[str, ...] = ()) -> PlannedArm:
    """Applies an arm's overrides to the experiment's model and recipe."""
    # Models are frozen, so that what nothing overrides may be shared.
    shape = {key: value for key, value in arm.model if value is not None}
    recipe = {key: value for key, value in arm.training if value is not None}
    return PlannedArm(
        arm=arm,
        model=spec.model.model_copy(update=shape) if shape else spec.model,
        training=spec.training.model_copy(update=recipe) if recipe else spec.training,
        control_of=control_of,
    )


def default_baseline(arms: Sequence[Arm]) -> str:
    """The first column/row tensor arm (the stronger baseline), else the first tensor arm, else the first."""
    tensor = [arm for arm in arms if isinstance(arm, TensorArm)]
    column_row = [arm for arm in tensor if arm.form == "column_row"]
    ranked: list[Arm] = [*column_row, *tensor, *arms]
    return ranked[0].name


def schedule(plan: Plan) -> list[ScheduledRun]:
    """All runs in the order they are made: rounds in turn, each with its own shuffled order of the arms."""
    measurement = plan.spec.measurement
    runs = []
    for number in range(measurement.rounds_planned):
        names = [planned.name for planned in plan.arms]
        if len(names) > 1:
            random.Random(derived_seed(measurement.seed, "order", number)).shuffle(names)  # noqa: S311
        seed = derived_seed(measurement.seed, "run", number)
        runs += [
            ScheduledRun(round=number, position=position, arm=name, seed=seed)
            for position, name in enumerate(names)
        ]
    return runs


def derived_seed(seed: int, purpose: str, *numbers: int) -> int:
    """A seed in [0, 2**31) for one purpose, unrelated to its neighbours' (first bits of a SHA-256)."""
    text = ":".join([str(seed), purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1
