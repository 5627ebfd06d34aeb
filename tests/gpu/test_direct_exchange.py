"""Kernels that exchange ghosts as they compute, against plain gathers; and training with them."""

import math
import os
from typing import Any

import pytest
import torch
import torch.distributed as dist

from phantom_core.ghost_exchange import SymmetricExchange, choose_exchange
from phantom_core.layouts.ghost_transport import ghost_sources
from phantom_core.spec import PhantomArm
from phantom_core.tasks import load_task
from phantom_core.training import Trainer
from tests.distributed import run_ranks
from tests.gpu.running import GPUS, RECIPES, TASK, Run, arms, gpu_ranks, plan, sizes, train

pytestmark = pytest.mark.skipif(GPUS == 0, reason="needs a CUDA device")
several = pytest.mark.parametrize(
    "p",
    [
        pytest.param(p, marks=pytest.mark.skipif(p > GPUS, reason=f"needs {p} GPUs, there are {GPUS}"))
        for p in (2, 3, 4)
    ],
)
SHAPES = [(256, 2048, 64), (256, 1024, 64), (1000, 512, 48), (16, 96, 5), (33, 80, 200), (1024, 256, 64)]
"""(b, m, k)."""


def everyone(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.contiguous(), group=group)
    return parts


def one_layer(
    exchange: SymmetricExchange, group: dist.ProcessGroup, b: int, m: int, k: int, seed: int
) -> None:
    """Forward and backward of one layer by the kernels, against their definitions."""
    p, rank, device = exchange.world_size, exchange.rank, torch.device("cuda", dist.get_rank())
    generator = torch.Generator(device).manual_seed(100 * seed + rank)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, generator=generator).bfloat16()

    def close(actual: torch.Tensor, expected: torch.Tensor, what: str) -> None:
        where = f"{what}, b = {b}, m = {m}, k = {k}, rank {rank}, call {seed}"
        scale = float(expected.float().abs().max())
        torch.testing.assert_close(actual.float(), expected.float(), rtol=0.02, atol=0.01 * scale, msg=where)

    direct = exchange.direct
    x, compressor, decompressors, z, dx, delta = (
        drawn(b, m),
        drawn(k, m),
        drawn(m, (p - 1) * k),
        drawn(b, m),
        drawn(b, m),
        drawn(b, m),
    )
    relu = seed % 2 == 0
    expected_z = z.clone()
    direct.send_ghosts(x, compressor)
    others = direct.receive_ghosts(z, decompressors, relu=relu)
    ghosts = everyone(x @ compressor.t(), group)
    close(others, torch.cat([ghosts[source] for source in ghost_sources(rank, p)], 1), "ghosts")
    expected_z = expected_z.float() + others.float() @ decompressors.t().float()
    close(z, torch.relu(expected_z) if relu else expected_z, "z")

    expected_dx = dx.clone()
    direct.send_contributions(delta, decompressors)
    h = direct.receive_gradient(dx, compressor, x if relu else None)
    blocks = everyone(delta @ decompressors, group)
    total = torch.zeros(b, k, device=device)
    for sender in range(p):
        if sender != rank:
            place = ghost_sources(sender, p).index(rank)
            total += blocks[sender][:, place * k : (place + 1) * k].float()
    close(h, total, "h")
    expected_dx = expected_dx.float() + h.float() @ compressor.float()
    close(dx, torch.where(x > 0, expected_dx, 0.0) if relu else expected_dx, "dx")


def layers_of_all_shapes() -> int:
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    device = torch.device("cuda", dist.get_rank())
    torch.cuda.set_device(device)
    group = dist.new_group(backend="nccl")
    choice = choose_exchange(group, device)
    exchange = choice.exchange
    assert exchange is not None, choice.reason
    own = torch.full((16, 64), float(dist.get_rank()), device=device)
    others = torch.empty(16 * (exchange.world_size - 1), 64, device=device)
    calls = 0
    for _ in range(3):
        for b, m, k in SHAPES:
            one_layer(exchange, group, b, m, k, calls)
            exchange.gather(own, others)  # of the same arena, in between
            torch.cuda.synchronize(device)
            assert [float(block[0, 0]) for block in others.view(-1, 16, 64)] == list(
                map(float, ghost_sources(exchange.rank, exchange.world_size))
            )
            calls += 1
    return calls


@several
def test_kernels_compute_what_they_say_for_all_shapes_in_turn(p: int) -> None:
    assert run_ranks(p, layers_of_all_shapes) == [3 * len(SHAPES)] * p


def both_forms(p: int, checkpointing: bool) -> list[tuple[str, Run, Run, Run]]:
    dataset = load_task(TASK)
    found = []
    with gpu_ranks() as (group, device):
        for recipe, settings in RECIPES.items():
            runs = []
            for form, graph in (("direct", True), ("direct", False), ("overlapped", True)):
                arm = PhantomArm(name="phantom", world_size=p, ghosts=16, form=form)
                planned = plan(arm, "bfloat16", activation_checkpointing=checkpointing, **settings)
                with Trainer(planned, dataset, group=group, device=device, seed=3, graph=graph) as trainer:
                    runs.append(train(trainer))
            found.append((recipe, runs[0], runs[1], runs[2]))
    return found


@several
@pytest.mark.parametrize("checkpointing", [False, True])
def test_direct_layers_learn_as_overlapped_ones_do_and_alike_in_a_graph(p: int, checkpointing: bool) -> None:
    for rank in run_ranks(p, both_forms, p, checkpointing):
        for recipe, graph, eager, overlapped in rank:
            assert graph.mode == "graph", (recipe, graph.reason)
            assert graph.losses == eager.losses, recipe
            assert graph.evaluations == eager.evaluations, recipe
            assert all(map(math.isfinite, graph.losses)), recipe
            torch.testing.assert_close(
                torch.tensor(graph.losses), torch.tensor(overlapped.losses), rtol=0.05, atol=0.0, msg=recipe
            )


def beside_and_after(p: int, dtype: str, **training: Any) -> list[tuple[str, Run, Run]]:
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
            if dtype == "float32":
                assert beside.losses == after.losses, name
            else:
                # Small weights' updates take one kernel here and torch's three there.
                torch.testing.assert_close(
                    torch.tensor(beside.losses), torch.tensor(after.losses), rtol=0.02, atol=0.0, msg=name
                )
