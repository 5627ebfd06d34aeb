"""Where the fused exchange can't be set up, on one rank or on all, every rank goes by the library and says why."""

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

import phantom_core.ghost_exchange as ghost_exchange_module
from phantom_core.collectives import Communicator
from phantom_core.layouts import PhantomLinear
from phantom_core.tasks import load_task
from phantom_core.training import Trainer
from tests.distributed import run_ranks
from tests.phantom_core.test_training_ranks import arms, plan, task

ALL = (0, 1, 2)
CAUSE = "symmetric memory can't be set up: "
CPU = "the fused exchange needs CUDA, this rank computes on cpu"


@dataclass
class Boards:
    """What fails where; all else is as on boards that reach each other."""

    without_cuda: Collection[int] = ()
    allocation: Collection[int] = ()
    rendezvous: Collection[int] = ()
    no_handle: Collection[int] = ()
    met: list[int] = field(default_factory=list)
    """Ranks, of which this process is one, that went to the rendezvous."""

    def problem(self, group: Any, device: torch.device) -> str | None:
        return real_problem(group, device) if dist.get_rank() in self.without_cuda else None

    def empty(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        del device
        if dist.get_rank() in self.allocation:
            raise RuntimeError("CUDA driver error: out of memory\nException raised from here")
        return torch.empty(size if size < 2**20 else 1, dtype=dtype)

    def meet(self, _: torch.Tensor, group: Any) -> Any:
        self.met.append(dist.get_rank())
        if dist.get_rank() in self.rendezvous:
            raise RuntimeError("peers can't be mapped")
        return (
            None if dist.get_rank() in self.no_handle else SimpleNamespace(signal_pad_size=2**20, group=group)
        )


real_problem = ghost_exchange_module._problem


@contextmanager
def on(boards: Boards) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ghost_exchange_module, "_problem", boards.problem)
        patch.setattr(symmetric, "empty", boards.empty)
        patch.setattr(symmetric, "rendezvous", boards.meet)
        patch.setitem(sys.modules, "phantom_core.ghost_kernels", SimpleNamespace())  # there is no Triton here
        yield


def train() -> tuple[list[float], str | None, str | None]:
    with Trainer(plan(arms(dist.get_world_size())["phantom"]), load_task(task("split"))) as trainer:
        trainer.prepare(1)
        trainer.run(3)
        return trainer.losses().tolist(), trainer.exchange.name, trainer.exchange.reason


def check_layer() -> None:
    """A layer that was promised the fused exchange if it can be had is the dense layer all the same."""
    ranks = Communicator()
    ranks.fuse_ghosts(torch.device("cpu"))
    layer = PhantomLinear(12, 12, ghosts=2, group=ranks, dtype=torch.float64)
    whole = torch.randn(
        5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True
    )
    own = whole.detach().chunk(ranks.world_size, 1)[ranks.rank].clone().requires_grad_()
    z = torch.nn.functional.linear(whole, layer.dense_equivalent(), layer.dense_bias())
    torch.autograd.backward(z.pow(3).sum())
    mine = layer(own)
    torch.autograd.backward(mine.pow(3).sum())
    torch.testing.assert_close(mine, z.chunk(ranks.world_size, 1)[ranks.rank])
    assert whole.grad is not None
    torch.testing.assert_close(own.grad, whole.grad.chunk(ranks.world_size, 1)[ranks.rank])


def fall_back(cases: list[tuple[Boards, bool, str]]) -> None:
    usual, name, reason = train()
    assert (name, reason) == ("gloo", CPU), "nothing was patched"
    for boards, meets, why in cases:
        with on(boards):
            assert train() == (usual, "gloo", why)
            assert bool(boards.met) == meets, why
            check_layer()
            told = Communicator().fuse_ghosts(torch.device("cpu"))
            assert told == f"collective: {why}"


def test_all_ranks_fall_back_where_any_can_not_set_up_the_fused_exchange_and_name_it() -> None:
    pad = "the signal pad is too small for 3 ranks"
    cases = [
        (Boards(without_cuda=ALL), False, CPU),
        (Boards(without_cuda=[1]), False, f"rank 1: {CPU}"),
        (Boards(allocation=ALL), False, f"{CAUSE}CUDA driver error: out of memory"),
        (Boards(allocation=[2]), False, f"rank 2: {CAUSE}CUDA driver error: out of memory"),
        (Boards(rendezvous=ALL), True, f"{CAUSE}peers can't be mapped"),
        (Boards(rendezvous=[0]), True, f"rank 0: {CAUSE}peers can't be mapped"),
        (Boards(no_handle=[0, 2]), True, f"ranks 0, 2: {CAUSE}{pad}"),
        (
            Boards(without_cuda=[0], allocation=[1, 2]),
            False,
            f"rank 0: {CPU}; ranks 1, 2: {CAUSE}CUDA driver error: out of memory",
        ),
    ]
    run_ranks(3, fall_back, cases)


def set_up() -> None:
    group = dist.group.WORLD
    assert group is not None
    with on(Boards()):
        choice = ghost_exchange_module.choose_arena(group, torch.device("cpu"))
    assert choice.arena is not None
    assert choice.reason == "every rank reaches every other's memory"
    assert choice.arena.handle.group is group


def test_where_nothing_fails_every_rank_has_an_arena() -> None:
    run_ranks(2, set_up)
