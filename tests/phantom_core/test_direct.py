"""Phantom layers that exchange as they compute equal those that overlap, given kernels that do what they say."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist

from phantom_core.collectives import Communicator
from phantom_core.direct_exchange import MOST_GHOSTS, MOST_TILES, SHARE_BYTES, TILES, DirectExchange
from phantom_core.ffn import build_ffn
from phantom_core.layouts import PhantomLinear
from phantom_core.layouts.ghost_transport import ghost_sources
from phantom_core.layouts.phantom import GhostForm
from phantom_core.plan import PlannedArm
from phantom_core.spec import PhantomArm
from phantom_core.task_shapes import TaskShape
from tests.distributed import run_ranks
from tests.phantom_core.arms import planned

ROWS = 7


class PlainDirect:
    """What `DirectExchange` promises, in plain torch: a send keeps what it was given until it is received."""

    def __init__(self) -> None:
        self.calls = 0
        self._sent: torch.Tensor | None = None

    def carries(self, rows: int, ghosts: int, dtype: torch.dtype) -> bool:
        return rows > 0 and ghosts > 0 and dtype == torch.float64

    def send_ghosts(self, x: torch.Tensor, compressor: torch.Tensor) -> None:
        self._send(x @ compressor.t())

    def receive_ghosts(self, z: torch.Tensor, decompressors: torch.Tensor, *, relu: bool) -> torch.Tensor:
        arrived = self._receive()
        others = torch.cat([arrived[source] for source in ghost_sources(dist.get_rank(), len(arrived))], 1)
        z += others @ decompressors.t()
        if relu:
            z.relu_()
        return others

    def send_contributions(self, delta: torch.Tensor, decompressors: torch.Tensor) -> None:
        self._send(delta @ decompressors)

    def receive_gradient(
        self, dx: torch.Tensor, compressor: torch.Tensor, activated: torch.Tensor | None
    ) -> torch.Tensor:
        arrived, k = self._receive(), compressor.shape[0]
        h = torch.zeros(dx.shape[0], k, dtype=dx.dtype)
        for sender, blocks in enumerate(arrived):
            if sender != dist.get_rank():
                place = ghost_sources(sender, len(arrived)).index(dist.get_rank())
                h += blocks[:, place * k : (place + 1) * k]
        dx += h @ compressor
        if activated is not None:
            dx.mul_(activated > 0)
        return h

    def _send(self, tensor: torch.Tensor) -> None:
        assert self._sent is None, "what was sent last was not received"
        self._sent = tensor.contiguous()
        self.calls += 1

    def _receive(self) -> list[torch.Tensor]:
        assert self._sent is not None, "nothing was sent"
        arrived = [torch.empty_like(self._sent) for _ in range(dist.get_world_size())]
        dist.all_gather(arrived, self._sent)
        self._sent = None
        return arrived


class PlainRanks(Communicator):
    """Ranks whose direct exchange is the plain one."""

    plain = PlainDirect()

    @property
    def direct_exchange(self) -> Any:
        return self.plain


@dataclass(frozen=True)
class Told:
    outputs: torch.Tensor
    evaluated: torch.Tensor
    gradients: dict[str, torch.Tensor]
    direct_calls: int
    fused_calls: int
    total_bytes_sent: int


def run(ranks: Communicator, each: PlannedArm, shape: TaskShape) -> Told:
    ffn = build_ffn(each, shape, "whole", ranks, seed=5)
    features = torch.randn(
        ROWS, shape.features, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    before = PlainRanks.plain.calls
    with ffn.counting() as traffic:
        outputs = ffn(features)
        torch.autograd.backward(outputs.square().sum())
    calls = PlainRanks.plain.calls - before
    with torch.no_grad():
        evaluated = ffn(features[:3])
    gradients = {name: p.grad for name, p in ffn.named_parameters() if p.grad is not None}
    return Told(outputs.detach(), evaluated, gradients, calls, traffic.fused_calls, traffic.total_bytes_sent)


CONDITIONS: list[dict[str, Any]] = [
    {"activation": "relu", "depth": 3},
    {"activation": "relu", "depth": 1, "bias": False},
    {"activation": "relu", "depth": 4, "activation_checkpointing": True},
    {"activation": "gelu", "depth": 2},
]


def both_forms(p: int) -> list[tuple[Told, Told]]:
    found = []
    for condition in CONDITIONS:
        told = []
        for form in ("direct", "overlapped"):
            arm = PhantomArm(name="p", world_size=p, ghosts=2, form=form)
            told.append(run(PlainRanks(), *planned(arm, dtype="float64", width=12, **condition)))
        found.append((told[0], told[1]))
    return found


@pytest.mark.parametrize("p", [2, 3])
def test_direct_layers_compute_and_learn_what_overlapped_ones_do(p: int) -> None:
    for rank in run_ranks(p, both_forms, p):
        for condition, (direct, overlapped) in zip(CONDITIONS, rank, strict=True):
            passes = 3 if condition.get("activation_checkpointing") else 2
            assert direct.direct_calls == direct.fused_calls == passes * condition["depth"]
            assert overlapped.direct_calls == overlapped.fused_calls == 0
            assert direct.total_bytes_sent == overlapped.total_bytes_sent
            torch.testing.assert_close(direct.outputs, overlapped.outputs, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(direct.evaluated, overlapped.evaluated, rtol=1e-12, atol=1e-12)
            assert direct.gradients.keys() == overlapped.gradients.keys()
            for name, gradient in direct.gradients.items():
                torch.testing.assert_close(gradient, overlapped.gradients[name], rtol=1e-10, atol=1e-12)


def alone_in_a_script() -> tuple[torch.Tensor, torch.Tensor]:
    """A layer used as any module, whose input needs no gradient."""
    found = []
    forms: tuple[GhostForm, ...] = ("direct", "overlapped")
    for form in forms:
        torch.manual_seed(0)
        layer = PhantomLinear(8, 4, 1, group=PlainRanks(), dtype=torch.float64, form=form)
        x = torch.randn(
            2, ROWS, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(dist.get_rank())
        )
        torch.autograd.backward(layer(x).sin().sum())
        assert layer.compressor is not None
        assert layer.compressor.grad is not None
        found.append(layer.compressor.grad)
    return found[0], found[1]


def test_a_direct_layer_s_gradient_reaches_its_peers_though_its_own_input_needs_none() -> None:
    for direct, overlapped in run_ranks(2, alone_in_a_script):
        assert direct.abs().max() > 0
        torch.testing.assert_close(direct, overlapped, rtol=1e-10, atol=1e-12)


def which_way(form: GhostForm, rows: int) -> bool:
    layer = PhantomLinear(8192, 8192, 64, group=PlainRanks(), dtype=torch.float64, device="meta", form=form)
    return layer.goes_direct(torch.empty(rows, 4096, dtype=torch.float64, device="meta"))


def which_ways() -> list[bool]:
    forms: tuple[GhostForm, ...] = ("auto", "direct", "overlapped")
    return [which_way(form, rows) for form in forms for rows in (256, 1024)]


def test_small_layers_go_direct_unless_told_otherwise() -> None:
    for rank in run_ranks(2, which_ways):
        assert rank == [True, False, True, True, False, False]


def test_what_a_share_can_t_hold_is_not_carried() -> None:
    exchange = DirectExchange(pytest, 0, 0, rank=0, world_size=4, device=torch.device("cpu"))
    assert exchange.carries(256, 64, torch.bfloat16)
    assert exchange.carries(1_024, 64, torch.bfloat16)
    assert exchange.carries(1, 1, torch.bfloat16)
    assert not exchange.carries(256, 64, torch.float32)
    assert not exchange.carries(1_025, 64, torch.bfloat16)
    assert not exchange.carries(16, MOST_GHOSTS + 1, torch.bfloat16)
    rows, ghosts = TILES[-1]
    assert MOST_TILES * rows * ghosts * 2 <= SHARE_BYTES
