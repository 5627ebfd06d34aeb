"""The fused exchange's own kernels, programs and ranks in any order: right numbers, no wait without end."""

import pytest
import torch

from phantom_core.ghost_exchange import MOST_BLOCKS, TILE_BYTES, SymmetricExchange, _blocks, _shard, _tile
from phantom_core.layer_costs import MOST_FUSED_BYTES
from phantom_core.layouts.ghost_transport import ghost_sources
from tests.phantom_core.kernel_machine import Machine

WORLDS = (2, 3, 4, 8)
DTYPES = (torch.bfloat16, torch.float32, torch.float64)


def drawn(*shape: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def in_rank_order(parts: list[torch.Tensor]) -> torch.Tensor:
    dtype = parts[0].dtype
    total = torch.zeros(parts[0].shape, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    for part in parts:
        total += part.to(total.dtype)
    return total.to(dtype)


def by_shards(exchange: SymmetricExchange, given: torch.Tensor) -> None:
    """As `sum` does with tensors that are too large to be told to all at once."""
    own = _shard(given.numel(), exchange.world_size)
    in_double = given.dtype == torch.float64
    exchange._launch(
        exchange._kernels.sum_by_shards, given, given, given.numel(), own, sum_in_double=in_double
    )


@pytest.mark.parametrize(
    ("p", "dtype"),
    [*((p, torch.bfloat16) for p in WORLDS), (3, torch.float32), (3, torch.float64)],
    ids=str,
)
def test_all_kinds_in_any_order_of_programs_give_the_right_numbers(p: int, dtype: torch.dtype) -> None:
    machine = Machine(p, seed=p)
    checks = []
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    # Different numbers of programs one after another: conversations are at different epochs.
    for number, (k, b) in enumerate([(1, 1), (3, 171), (7, 150), (2, 512), (1, p + 1)]):
        own = [drawn(k, b, seed=100 * number + rank, dtype=dtype) for rank in range(p)]
        in_parts = [drawn(2, k, b, seed=200 * number + rank, dtype=wide) for rank in range(p)]
        blocks = [drawn((p - 1) * k, b, seed=300 * number + rank, dtype=dtype) for rank in range(p)]
        at_once, sharded = [each.clone() for each in own], [each.clone() for each in own]
        ghosts = [torch.full(((p - 1) * k, b), torch.nan, dtype=dtype) for _ in range(p)]
        added = [each.clone() for each in ghosts]
        reduced = [torch.full((k, b), torch.nan, dtype=dtype) for _ in range(p)]
        for rank in range(p):
            machine.enqueue(rank, SymmetricExchange.gather, own[rank], ghosts[rank])
            machine.enqueue(rank, by_shards, sharded[rank])
            machine.enqueue(rank, SymmetricExchange.sum, at_once[rank])
            machine.enqueue(rank, SymmetricExchange.reduce, blocks[rank], reduced[rank])
            machine.enqueue(rank, SymmetricExchange.gather, in_parts[rank], added[rank])
        expected = in_rank_order(own)
        whole = [(parts[0] + parts[1]).to(dtype) for parts in in_parts]
        for rank in range(p):
            sources = ghost_sources(rank, p)
            checks.append((at_once[rank], expected))
            checks.append((sharded[rank], expected))
            checks.append((ghosts[rank], torch.cat([own[source] for source in sources])))
            checks.append((added[rank], torch.cat([whole[source] for source in sources])))
            meant = [
                blocks[source].view(p - 1, k, b)[ghost_sources(source, p).index(rank)]
                for source in range(p)
                if source != rank
            ]
            checks.append((reduced[rank], in_rank_order(meant)))
    machine.run()
    for found, right in checks:
        assert torch.equal(found, right)


@pytest.mark.parametrize(
    ("p", "dtype"), [(2, torch.bfloat16), (2, torch.float64), (3, torch.float32)], ids=str
)
def test_sums_at_the_limits_fit_the_tiles(p: int, dtype: torch.dtype) -> None:
    most_at_once, most = MOST_FUSED_BYTES // dtype.itemsize, p * MOST_FUSED_BYTES // dtype.itemsize
    for numel in (most_at_once, most_at_once + 1, most):
        machine = Machine(p, seed=numel)
        assert machine.exchanges[0].carries_sum(numel * dtype.itemsize)
        given = [drawn(numel, seed=rank, dtype=dtype) for rank in range(p)]
        summed = [each.clone() for each in given]
        for rank in range(p):
            machine.enqueue(rank, SymmetricExchange.sum, summed[rank])
        machine.run()
        expected = in_rank_order(given)
        assert all(torch.equal(each, expected) for each in summed)
    assert not machine.exchanges[0].carries_sum(most * dtype.itemsize + 1)


@pytest.mark.parametrize("p", WORLDS)
def test_no_size_needs_more_programs_or_larger_tiles_than_there_are(p: int) -> None:
    for dtype in DTYPES:
        for own in (1, 511, 512, 513, 32_768, 32_769, 100_003, MOST_FUSED_BYTES // dtype.itemsize):
            if own * dtype.itemsize <= MOST_FUSED_BYTES:
                assert _blocks(own, _tile(own)) <= MOST_BLOCKS
                assert _tile(own) * dtype.itemsize <= TILE_BYTES


@pytest.mark.parametrize(("p", "at_once"), [(2, 2**20), (3, 2**20), (4, 2**19), (8, 2**20 // 6)])
def test_sums_send_what_is_counted(p: int, at_once: int) -> None:
    exchange = Machine(p, seed=0).exchanges[0]
    assert exchange.sum_bytes_sent(at_once) == (p - 1) * at_once
    assert exchange.sum_bytes_sent(at_once + p) == 2 * (p - 1) * -(-(at_once + p) // p)
