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

BOARDS = torch.cuda.device_count()
RANKS_A_BOARD = int(os.environ.get("RANKS_A_BOARD", "1"))
"""Ranks that share a GPU, which shows what is right but never what is fast. NCCL can since 2.31."""
MOST_RANKS = BOARDS * RANKS_A_BOARD
TASK = TeacherTask(
    features=256, outputs=8, latents=32, train_rows=4_096, validation_rows=700, feature_placement="split"
)
STEPS = 50

sizes = pytest.mark.parametrize(
    "p",
    [
        pytest.param(
            p, marks=pytest.mark.skipif(p > MOST_RANKS, reason=f"needs {p} GPUs, there are {BOARDS}")
        )
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


def own_board() -> torch.device:
    """This rank's GPU, set as the current one; before anything is asked of NCCL."""
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    if RANKS_A_BOARD > 1:
        os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    device = torch.device("cuda", dist.get_rank() % BOARDS)
    torch.cuda.set_device(device)
    return device


@contextmanager
def gpu_ranks() -> Iterator[tuple[Communicator, torch.device]]:
    """This rank's GPU and one communicator for all arms, over NCCL beside the default gloo group."""
    device = own_board()
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
