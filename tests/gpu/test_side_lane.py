"""Weight gradients beside the backward pass: the same numbers, from the same memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from phantom_core.collectives import Communicator
from phantom_core.side_lane import LAG, SideLane
from phantom_core.spec import PhantomArm
from phantom_core.tasks import load_task
from phantom_core.training import Trainer
from tests.distributed import run_ranks
from tests.gpu.running import BOARDS, MOST_RANKS, TASK, arms, gpu_ranks, plan, sizes, train

pytestmark = pytest.mark.skipif(BOARDS == 0, reason="streams need a CUDA device")


@contextmanager
def in_line(_ranks: Communicator, _device: torch.device) -> Iterator[None]:
    yield


def beside_and_in_line(p: int, dtype: str, checkpointing: bool) -> list[tuple[str, list[float], list[float]]]:
    dataset = load_task(TASK)
    found = []
    with gpu_ranks() as (group, device), pytest.MonkeyPatch.context() as patch:
        for arm in arms(p):
            losses = []
            for lane in (Communicator.weight_gradients_beside, in_line):
                patch.setattr(Communicator, "weight_gradients_beside", lane)
                planned = plan(arm, dtype, width=1024, depth=6, activation_checkpointing=checkpointing)
                with Trainer(planned, dataset, group=group, device=device, seed=3) as trainer:
                    losses.append(train(trainer).losses)
            patch.undo()
            found.append((arm.name, losses[0], losses[1]))
    return found


@sizes
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_losses_are_the_same_to_the_bit(p: int, dtype: str, checkpointing: bool) -> None:
    for rank in run_ranks(p, beside_and_in_line, p, dtype, checkpointing):
        for name, beside, in_turn in rank:
            assert beside == in_turn, name
            assert torch.isfinite(torch.tensor(beside)).all(), name


def ghosts_beside_and_in_line(p: int, dtype: str) -> list[list[float]]:
    dataset = load_task(TASK)
    phantom = next(arm for arm in arms(p) if isinstance(arm, PhantomArm))
    losses = []
    with gpu_ranks() as (group, device), pytest.MonkeyPatch.context() as patch:
        for beside in (True, False, None):
            patch.setattr(Communicator, "makes_ghosts_beside", beside)
            planned = plan(phantom, dtype, width=1024, depth=6)
            with Trainer(planned, dataset, group=group, device=device, seed=3) as trainer:
                losses.append(train(trainer).losses)
    return losses


@pytest.mark.skipif(MOST_RANKS < 2, reason="ghosts travel between two GPUs")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ghosts_made_beside_the_local_product_are_the_same_to_the_bit(dtype: str) -> None:
    for rank in run_ranks(2, ghosts_beside_and_in_line, 2, dtype):
        beside, in_turn, as_usual = rank
        assert beside == in_turn == as_usual
        assert torch.isfinite(torch.tensor(beside)).all()


def test_what_is_read_beside_is_kept_until_it_is_read() -> None:
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    lane = SideLane(device)
    work = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    sums = []
    with torch.cuda.stream(work):
        for number in range(5 * LAG):
            ones = torch.full((1 << 20,), float(number), device=device)
            with lane.beside(ones):
                torch.cuda._sleep(1_000_000)  # type: ignore[no-untyped-call]
                sums.append(ones.sum())
            del ones
            # Would be given the memory of what was just let go of, if that were free.
            torch.full((1 << 20,), -1.0, device=device)
        lane.join()
        total = torch.stack(sums)
    torch.cuda.synchronize(device)
    assert total.tolist() == [float(number << 20) for number in range(5 * LAG)]
