"""Ghosts sent by the GEMM that makes them and awaited by the GEMM that reads them: no kernel in between.

The fused exchange (`ghost_exchange`) is a kernel of its own on a stream of its own: ghosts are written, read, stored
for peers, waited for, written and read again, with a fork and a join around it. On small layers those launches are
what ghosts cost. Here one kernel computes a tile of ghosts and stores it for every peer, the local GEMM runs while
tiles travel, and one kernel waits for the peers' tiles, multiplies and applies ReLU. Triton's GEMMs are no match for
cuBLAS's in FLOP/s, so large layers keep the exchange that hides behind theirs (`PhantomLinear`).
"""

from types import ModuleType
from typing import Any

import torch

TILES = ((16, 16), (16, 32), (32, 32))
"""Rows and ghosts of a tile: the first of which there are no more than"""
MOST_TILES = 64
"""programs, so that all of them run at once beside a GEMM."""
SHARE_BYTES = MOST_TILES * TILES[-1][0] * TILES[-1][1] * 2
"""Memory for what one rank sends another at a time."""
MOST_GHOSTS = 256
"""k; kernels are unrolled over it."""
WARPS, STAGES = 4, 4
DEPTH = 128
"""Of the m that a sending GEMM sums over, so many at a time; half as many where tiles are wide."""


def arena_bytes(world_size: int) -> int:
    """Memory that every rank needs for it: two halves with a share for every rank, and flags."""
    return 2 * world_size * SHARE_BYTES + 4 * MOST_TILES * world_size


class DirectExchange:
    """The four kernels of a phantom layer that exchanges as it computes, for bfloat16.

    Every call that sends is followed, on the same stream, by its call that receives; calls of all ranks come in
    the same order.

    Args:
        kernels: The module `direct_kernels`.
        arenas: Device address of a table of all ranks' arenas.
        data_at: Where in an arena `arena_bytes` are this exchange's.
        rank: This rank.
        world_size: Ranks, p.
        device: This rank's device.
        waits: Whether receivers wait for peers; benchmarks leave that out.
    """

    def __init__(
        self,
        kernels: ModuleType,
        arenas: int,
        data_at: int,
        *,
        rank: int,
        world_size: int,
        device: torch.device,
        waits: bool = True,
    ) -> None:
        self._kernels, self._arenas, self._waits = kernels, arenas, waits
        self._world_size = world_size
        self._counters = torch.zeros(2, dtype=torch.int32, device=device)
        self._place = {
            "rank": rank,
            "world": world_size,
            "data_at": data_at,
            "share_bytes": SHARE_BYTES,
            "flags_at": data_at + 2 * world_size * SHARE_BYTES,
        }

    def carries(self, rows: int, ghosts: int, dtype: torch.dtype) -> bool:
        """Whether k ghosts of b rows can go this way."""
        return dtype == torch.bfloat16 and ghosts <= MOST_GHOSTS and _tile(rows, ghosts) is not None

    def send_ghosts(self, x: torch.Tensor, compressor: torch.Tensor) -> None:
        """Sends x C^T to every peer.

        Args:
            x: This rank's inputs (b, m), contiguous.
            compressor: C (k, m).
        """
        self._send(self._kernels.send_ghosts, x, compressor, compressor.shape[0], columns=1)

    def receive_ghosts(self, z: torch.Tensor, decompressors: torch.Tensor, *, relu: bool) -> torch.Tensor:
        """Adds what the other ranks' ghosts contribute to z, in place.

        Args:
            z: The local part (b, m_out), contiguous; all of it afterwards, max(z, 0) with `relu`.
            decompressors: D (m_out, (p-1) k), blocks in order.
            relu: Whether the activation is applied.

        Returns:
            The other ranks' ghosts (b, (p-1) k), in block order.
        """
        others = z.new_empty(z.shape[0], decompressors.shape[1])
        k = decompressors.shape[1] // (self._world_size - 1)
        self._receive(self._kernels.receive_ghosts, z, (z, decompressors, others), k, relu=relu)
        return others

    def send_contributions(self, delta: torch.Tensor, decompressors: torch.Tensor) -> None:
        """Sends every peer what this rank knows about the gradient of the peer's ghosts, delta D_ji.

        Args:
            delta: dloss/dz (b, m_out), contiguous.
            decompressors: D (m_out, (p-1) k), blocks in order.
        """
        peers = self._world_size - 1
        places = 1 << (peers - 1).bit_length()
        k = decompressors.shape[1] // peers
        self._send(self._kernels.send_contributions, delta, decompressors, k, columns=places, places=places)

    def receive_gradient(
        self, dx: torch.Tensor, compressor: torch.Tensor, activated: torch.Tensor | None
    ) -> torch.Tensor:
        """Adds h C to dx, in place; h is the sum of what all ranks know about the gradient of this rank's ghosts.

        Args:
            dx: The local part (b, m), contiguous; all of it afterwards.
            compressor: C (k, m).
            activated: The layer's inputs (b, m) if ReLU made them: dx is then zero where they are, ReLU's own
                gradient.

        Returns:
            h (b, k).
        """
        k = compressor.shape[0]
        h = dx.new_empty(dx.shape[0], k)
        inputs = dx if activated is None else activated
        relu = activated is not None
        self._receive(self._kernels.receive_gradient, dx, (dx, compressor, h, inputs), k, relu=relu)
        return h

    def _send(
        self,
        kernel: Any,
        rows: torch.Tensor,
        weight: torch.Tensor,
        k: int,
        *,
        columns: int,
        **options: int,
    ) -> None:
        b, m = rows.shape
        tile = _tile(b, k)
        assert tile is not None, "asked for by `carries`"
        row_tile, ghost_tile = tile
        kernel[(_tiles(b, k, tile),)](
            rows,
            weight,
            self._arenas,
            self._counters,
            b,
            m=m,
            k=k,
            row_tile=row_tile,
            ghost_tile=ghost_tile,
            depth=DEPTH if columns * ghost_tile <= 64 else DEPTH // 2,
            num_warps=WARPS,
            num_stages=STAGES,
            **self._place,
            **options,
        )

    def _receive(
        self, kernel: Any, product: torch.Tensor, tensors: tuple[torch.Tensor, ...], k: int, *, relu: bool
    ) -> None:
        b, m = product.shape
        tile = _tile(b, k)
        assert tile is not None, "asked for by `carries`"
        row_tile, ghost_tile = tile
        columns = 64
        # Enough programs for the multiprocessors of the largest devices, if the product is large enough.
        rows = 64 if -(-b // 64) * -(-m // columns) >= 128 else 32
        asked = rows // row_tile * -(-k // ghost_tile) * self._world_size
        kernel[(-(-b // rows), -(-m // columns))](
            *tensors,
            self._arenas,
            self._counters,
            b,
            m=m,
            k=k,
            row_tile=row_tile,
            ghost_tile=ghost_tile,
            rows_here=rows,
            columns_here=columns,
            depth=64 if k > 32 else 32 if k > 16 else 16,
            flags=1 << (asked - 1).bit_length(),
            waits=self._waits,
            relu=relu,
            num_warps=WARPS,
            **self._place,
        )


def _tile(rows: int, ghosts: int) -> tuple[int, int] | None:
    return next((tile for tile in TILES if _tiles(rows, ghosts, tile) <= MOST_TILES), None)


def _tiles(rows: int, ghosts: int, tile: tuple[int, int]) -> int:
    row_tile, ghost_tile = tile
    return -(-rows // row_tile) * -(-ghosts // ghost_tile)
