"""What tests on GPUs share: ranks over NCCL, small arms, recipes under which they learn. Not a test."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phantom_core.training.steps as steps_module
from phantom_core.collectives import Communicator
from phantom_core.plan import PlannedArm
from phantom_core.spec import (
    Arm,
    BlockDiagonalArm,
    DenseArm,
    LowRankArm,
    ModelSpec,
    PhantomArm,
    Schedule,
    StopAtSteps,
    TeacherTask,
    TensorArm,
    TrainingSpec,
)
from phantom_core.training import Trainer

GPUS = torch.cuda.device_count()
TASK = TeacherTask(
    features=256, outputs=8, latents=32, train_rows=4_096, validation_rows=700, feature_placement="split"
)
STEPS = 50

sizes = pytest.mark.parametrize(
    "p",
    [
        pytest.param(p, marks=pytest.mark.skipif(p > GPUS, reason=f"needs {p} GPUs, there are {GPUS}"))
        for p in (1, 2, 4)
    ],
)


def arms(p: int) -> list[Arm]:
    if p == 1:
        return [DenseArm(name="dense")]
    return [
        TensorArm(name="gather", world_size=p, form="gather"),
        TensorArm(name="column_row", world_size=p),
        PhantomArm(name="phantom", world_size=p, ghosts=16),
        BlockDiagonalArm(name="block-diagonal", world_size=p),
        LowRankArm(name="low-rank", world_size=p, rank=32),
    ]


def plan(arm: Arm, dtype: str = "float32", width: int = 512, depth: int = 4, **training: Any) -> PlannedArm:
    settings = {
        "batch_size": 128,
        "schedule": Schedule(kind="cosine", warmup_steps=5, decay_steps=60, final_fraction=0.1),
        "stop": StopAtSteps(steps=STEPS),
    }
    return PlannedArm(
        arm=arm,
        model=ModelSpec(width=width, depth=depth, dtype=dtype),
        training=TrainingSpec(**(settings | training)),
    )


RECIPES: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd", "learning_rate": 0.01},
    "momentum": {"optimizer": "sgd", "learning_rate": 0.003, "momentum": 0.9, "weight_decay": 1e-3},
    "adamw": {"optimizer": "adamw", "learning_rate": 1e-3, "weight_decay": 0.01},
}
"""Rates under which every arm's loss falls from the first steps on: what diverges is NaN, and equals nothing."""


@contextmanager
def gpu_ranks() -> Iterator[tuple[Communicator, torch.device]]:
    """This rank's GPU and one communicator for all arms, over NCCL beside the default gloo group."""
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    device = torch.device("cuda", dist.get_rank())
    torch.cuda.set_device(device)
    steps_module._MOST_STEPS = 16  # this process is the rank's own; tables are refilled on the way
    group = dist.new_group(backend="nccl")
    assert isinstance(group, dist.ProcessGroup)
    try:
        yield Communicator(group), device
    finally:
        dist.destroy_process_group(group)


@dataclass(frozen=True)
class Run:
    mode: str
    reason: str | None
    losses: list[float]
    evaluations: list[float]


def train(trainer: Trainer, warmup_steps: int = 2) -> Run:
    """Runs and evaluates in turn, in portions that end within and on the tables."""
    trainer.prepare(warmup_steps)
    losses, evaluations = [], [trainer.evaluate()]
    for steps in (3, 13, 1, STEPS - 17):
        trainer.run(steps)
        evaluations.append(trainer.evaluate())
        losses += trainer.losses().tolist()
    return Run(trainer.step_mode, trainer.step_mode_reason, losses, evaluations)
