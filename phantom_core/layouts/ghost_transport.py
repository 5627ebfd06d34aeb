"""How ghosts get to the other ranks: by a collective, or by the fused exchange where a communicator has one.

Both start a transfer that the caller hides behind a GEMM, and finish it when its result is needed. A direction
begins with its own small GEMM, since the collective wants that written straight into its buffer. With the fused
exchange that GEMM runs beside the caller's, too, where that one leaves multiprocessors idle
(`Communicator.makes_ghosts_beside`): it is thin.
"""

from abc import ABC, abstractmethod
from contextlib import nullcontext

import torch

from phantom_core.collectives import Communicator
from phantom_core.ghost_exchange import SymmetricExchange
from phantom_core.side_lane import leaves_idle

PARTS = 2
"""Of a thin product along its inner dimension, where that is long and the local product small (decision 22)."""
LEAST_INNER = 512
"""Of a part."""


def ghost_sources(rank: int, world_size: int) -> tuple[int, ...]:
    """The rank whose ghosts each block of `decompressors` on a rank reads, in the order of the blocks.

    The blocks lie in rank order, but the slot of the rank itself is taken by the last rank, so that one (k,
    b) copy makes the other ranks' ghosts contiguous. On the first rank they start at 1, on the last they
    end before it.
    """
    if rank == 0:
        return tuple(range(1, world_size))
    sources = list(range(world_size - 1))
    if rank < world_size - 1:
        sources[rank] = world_size - 1
    return tuple(sources)


class Transfer(ABC):
    """A transfer under way."""

    @abstractmethod
    def finish(self) -> torch.Tensor:
        """Waits for it, on the device: what arrived."""


def start_gather(ranks: Communicator, compressor: torch.Tensor, x: torch.Tensor) -> Transfer:
    """Starts to collect the other ranks' ghosts.

    Args:
        ranks: Who exchanges.
        compressor: C (k, m).
        x: This rank's inputs (b, m), whose ghosts C x^T (k, b) the others get.

    Returns:
        The transfer of the others' ghosts ((p-1) k, b), in block order.
    """
    exchange = _fitting(ranks, compressor.shape[0] * x.shape[0], x)
    if exchange is None:
        return _CollectiveGather(ranks, compressor, x)
    return _FusedGather(ranks, exchange, compressor, x)


def start_reduce(ranks: Communicator, decompressors: torch.Tensor, delta: torch.Tensor) -> Transfer:
    """Starts to sum what all ranks know about the gradient of each rank's ghosts.

    Args:
        ranks: Who exchanges.
        decompressors: D (m, (p-1) k), blocks in order.
        delta: dloss/dz (b, m); D^T delta^T holds a block for every other rank.

    Returns:
        The transfer of h (k, b), the gradient of this rank's ghosts.
    """
    k = decompressors.shape[1] // (ranks.world_size - 1)
    exchange = _fitting(ranks, k * delta.shape[0], delta)
    if exchange is None:
        return _CollectiveReduce(ranks, decompressors, delta, k)
    return _FusedReduce(ranks, exchange, decompressors, delta, k)


def _fitting(ranks: Communicator, numel: int, like: torch.Tensor) -> SymmetricExchange | None:
    exchange = ranks.ghost_exchange
    fits = exchange is not None and exchange.carries(numel * like.element_size())
    return exchange if fits else None


class _Slots:
    """The p slots of k ghosts in an exchanged (p k, b) buffer; a GEMM works on p - 1 contiguous ones."""

    def __init__(self, like: torch.Tensor, ranks: Communicator, ghosts: int, rows: int) -> None:
        self.buffer = like.new_empty(ranks.world_size * ghosts, rows)
        self._slots = self.buffer.view(ranks.world_size, ghosts, rows)
        self._rank, self._last = ranks.rank, ranks.world_size - 1
        self.own = self._slots[self._rank]  # (k, b)
        self.others = self.buffer[ghosts:] if self._rank == 0 else self.buffer[:-ghosts]  # ((p-1) k, b)

    def gathered_to_blocks(self) -> None:
        """After an all-gather: the last rank's ghosts move into this rank's slot."""
        if 0 < self._rank < self._last:
            self.own.copy_(self._slots[self._last])

    def blocks_to_scattered(self) -> None:
        """Before a reduce-scatter: the last rank's block moves to its slot, and this rank's own is zero."""
        if 0 < self._rank < self._last:
            self._slots[self._last].copy_(self.own)
        self.own.zero_()


class _CollectiveGather(Transfer):
    def __init__(self, ranks: Communicator, compressor: torch.Tensor, x: torch.Tensor) -> None:
        self._slots = _Slots(x, ranks, compressor.shape[0], x.shape[0])
        torch.mm(compressor, x.t(), out=self._slots.own)
        self._pending = ranks.all_gather(self._slots.buffer, self._slots.own)

    def finish(self) -> torch.Tensor:
        self._pending.wait()
        self._slots.gathered_to_blocks()
        return self._slots.others


class _CollectiveReduce(Transfer):
    def __init__(self, ranks: Communicator, decompressors: torch.Tensor, delta: torch.Tensor, k: int) -> None:
        slots = _Slots(delta, ranks, k, delta.shape[0])
        torch.mm(decompressors.t(), delta.t(), out=slots.others)
        slots.blocks_to_scattered()
        self._h = delta.new_empty(k, delta.shape[0])  # (k, b)
        self._pending = ranks.reduce_scatter(self._h, slots.buffer)

    def finish(self) -> torch.Tensor:
        self._pending.wait()
        return self._h


def _thin_product(
    ranks: Communicator, exchange: SymmetricExchange, weight: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """Product of a weight and rows^T, in line or on the stream that it is sent from; maybe in parts to be added up.

    The local product has as many numbers as `rows`, whose width it keeps.

    Returns:
        (out, b), or (parts, out, b) in float32, which the exchange adds up and rounds.
    """
    beside = ranks.makes_ghosts_beside
    if beside is None:
        beside = leaves_idle(rows.device, rows.numel())
    with exchange.beside() if beside else nullcontext():
        if not _in_parts(rows):
            return torch.mm(weight, rows.t())
        left = weight.view(weight.shape[0], PARTS, -1).transpose(0, 1)  # (parts, out, m / parts)
        right = rows.t().view(PARTS, -1, rows.shape[0])  # (parts, m / parts, b)
        return torch.bmm(left, right, out_dtype=torch.float32)


def _in_parts(rows: torch.Tensor) -> bool:
    """Whether a thin product with rows (b, m) is quicker in parts.

    It keeps few multiprocessors busy, each for as long as the inner dimension m takes. Beside a local product that
    keeps more than a quarter of them busy, more programs gain nothing and cost energy.
    """
    m = rows.shape[1]
    fits = m % PARTS == 0 and m // PARTS >= LEAST_INNER
    return fits and rows.dtype == torch.bfloat16 and leaves_idle(rows.device, 4 * rows.numel())


class _FusedGather(Transfer):
    def __init__(
        self, ranks: Communicator, exchange: SymmetricExchange, compressor: torch.Tensor, x: torch.Tensor
    ) -> None:
        k, b = compressor.shape[0], x.shape[0]
        self._others = x.new_empty((ranks.world_size - 1) * k, b)
        ranks.count("all_gather", k * b * ranks.world_size, x.element_size(), fused=True)
        self._exchange = exchange
        # (k, b) or in parts; kept until joined.
        self._own = _thin_product(ranks, exchange, compressor, x)
        with exchange.beside():
            exchange.gather(self._own, self._others)

    def finish(self) -> torch.Tensor:
        self._exchange.join()
        return self._others


class _FusedReduce(Transfer):
    def __init__(
        self,
        ranks: Communicator,
        exchange: SymmetricExchange,
        decompressors: torch.Tensor,
        delta: torch.Tensor,
        k: int,
    ) -> None:
        self._h = delta.new_empty(k, delta.shape[0])
        ranks.count("reduce_scatter", self._h.numel() * ranks.world_size, delta.element_size(), fused=True)
        self._exchange = exchange
        # ((p-1) k, b) or in parts. Kept until joined: the allocator knows nothing of the stream that reads it.
        self._blocks = _thin_product(ranks, exchange, decompressors.t(), delta)
        with exchange.beside():
            exchange.reduce(self._blocks, self._h)

    def finish(self) -> torch.Tensor:
        self._exchange.join()
        return self._h
