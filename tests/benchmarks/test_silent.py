"""An arm that sends nothing computes on numbers of the usual size, and nothing crosses."""

import pytest
import torch
import torch.distributed as dist

from benchmarks.silent import SilentCommunicator
from benchmarks.step_arms import Size, arms, rows
from benchmarks.step_trainers import NoUpdate, UnsavedUpdate
from phantom_core.training import Trainer
from tests.distributed import run_ranks

SIZE = Size(n=64, depth=2, k=4, b=16, p=2)


def _losses() -> dict[str, tuple[int | None, list[float]]]:
    found = {}
    for arm in arms(SIZE, "float32"):
        if not arm.can_be_silent:
            continue
        with Trainer(arm.planned, rows(64), group=SilentCommunicator(dist.group.WORLD)) as trainer:
            trainer.prepare(2)
            trainer.run(3)
            found[arm.name] = trainer.bytes_sent_per_step, trainer.losses().tolist()
    return found


def _frozen() -> tuple[torch.Tensor, torch.Tensor]:
    arm = next(arm for arm in arms(SIZE, "float32") if arm.name == "phantom")
    losses = []
    for update in (NoUpdate, UnsavedUpdate):
        # All rows in every batch, so that only the weights can change the loss.
        with Trainer(arm.planned, rows(SIZE.b), group=dist.group.WORLD, update=update) as trainer:
            trainer.prepare(0)
            trainer.run(3)
            losses.append(trainer.losses())
    return losses[0], losses[1]


def test_silent_arms_run_send_nothing_and_stay_finite() -> None:
    for rank in run_ranks(2, _losses):
        assert rank.keys() == {arm.name for arm in arms(SIZE, "float32") if arm.can_be_silent}
        for sent, losses in rank.values():
            assert sent == 0
            assert torch.tensor(losses).isfinite().all()


def test_without_an_optimizer_weights_stay() -> None:
    frozen, updated = run_ranks(2, _frozen)[0]
    assert frozen[0] == pytest.approx(float(frozen[2]), rel=1e-5)
    assert updated[0] != updated[2]
