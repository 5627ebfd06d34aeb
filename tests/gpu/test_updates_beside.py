"""Weights that are updated beside the backward pass, against updates after it."""

import math
from typing import Any

import pytest

import phantom_core.training.optimizers as optimizers_module
from phantom_core.tasks import load_task
from phantom_core.training import Trainer
from tests.distributed import run_ranks
from tests.gpu.running import BOARDS, RECIPES, TASK, Run, arms, gpu_ranks, plan, sizes, train

pytestmark = pytest.mark.skipif(BOARDS == 0, reason="needs a CUDA device")


def beside_and_after(p: int, dtype: str, **training: Any) -> list[tuple[str, Run, Run]]:
    # Small weights are updated by the same kernels at the end, too: this process is the rank's own.
    optimizers_module.LEAST_IN_ONE_PASS = 1  # type: ignore[attr-defined]
    dataset = load_task(TASK)
    found = []
    with gpu_ranks() as (group, device):
        for arm in arms(p):
            for recipe, settings in RECIPES.items():
                runs = []
                for when in ("overlapped", "after"):
                    planned = plan(arm, dtype, width=1024, update=when, **settings, **training)
                    with Trainer(planned, dataset, group=group, device=device, seed=3) as trainer:
                        runs.append(train(trainer))
                found.append((f"{arm.name}, {recipe}", runs[0], runs[1]))
    return found


@sizes
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_updates_beside_backward_leave_the_same_losses_to_the_bit(p: int, dtype: str) -> None:
    for rank in run_ranks(p, beside_and_after, p, dtype):
        for name, beside, after in rank:
            assert beside.mode == after.mode == "graph", (name, beside.reason)
            assert all(map(math.isfinite, beside.losses)), name
            assert beside.losses == after.losses, name
