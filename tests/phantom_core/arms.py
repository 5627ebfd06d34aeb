"""Specs and arms for tests, in a line each."""

from typing import Any

from phantom_core.plan import PlannedArm, resolve
from phantom_core.spec import (
    Arm,
    BlockDiagonalArm,
    DenseArm,
    ExperimentSpec,
    LowRankArm,
    ModelSpec,
    PhantomArm,
    StopAtSteps,
    TeacherTask,
    TensorArm,
    TrainingSpec,
)
from phantom_core.task_shapes import TaskShape, task_shape


def experiment(*arms: Arm, **changes: Any) -> ExperimentSpec:
    """A small experiment; `changes` are fields of the spec, of its model, its task or its training."""

    def of(model: type[Any], **defaults: Any) -> Any:
        known = {name: changes.pop(name) for name in list(changes) if name in model.model_fields}
        return model(**(defaults | known))

    task = changes.pop("task", None) or of(TeacherTask, features=24, outputs=3)
    training = of(TrainingSpec, stop=StopAtSteps(steps=10), batch_size=5)
    model = of(ModelSpec, width=12)
    return ExperimentSpec(name="test", task=task, model=model, training=training, arms=list(arms), **changes)


def every_arm(p: int, ghosts: int = 2, rank: int = 5) -> list[Arm]:
    """One arm of each strategy and form that runs on p ranks."""
    arms: list[Arm] = [
        TensorArm(name="gather", world_size=p, form="gather"),
        TensorArm(name="column_row", world_size=p),
        PhantomArm(name="phantom", world_size=p, ghosts=ghosts),
        BlockDiagonalArm(name="block_diagonal", world_size=p),
        LowRankArm(name="low_rank", world_size=p, rank=rank),
    ]
    return [*arms, DenseArm(name="dense")] if p == 1 else arms


def dtensor_arms(p: int) -> list[Arm]:
    """PyTorch's tensor parallelism in both forms."""
    return [
        TensorArm(name="dtensor_gather", world_size=p, form="gather", implementation="dtensor"),
        TensorArm(name="dtensor_column_row", world_size=p, implementation="dtensor"),
    ]


def planned(arm: Arm, **changes: Any) -> tuple[PlannedArm, TaskShape]:
    """An arm, resolved in a small experiment, and the experiment's task shape."""
    spec = experiment(arm, **changes)
    return resolve(spec, arm), task_shape(spec.task)
