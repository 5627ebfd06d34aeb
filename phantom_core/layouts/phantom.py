"""Phantom parallelism (arXiv 2508.00960): ranks exchange k ghosts each instead of their n/p neurons."""

from typing import Any

import torch

from phantom_core.collectives import Communicator
from phantom_core.initialization import fill_normal
from phantom_core.layouts.base import Group, LayoutError, SplitLinear, apply_function, backward_of
from phantom_core.layouts.ghost_transport import ghost_sources, start_gather, start_reduce
from phantom_core.layouts.local_linear import local_linear


class _Phantom(torch.autograd.Function):
    """The layer's forward and backward, each hiding its one collective behind the local GEMMs."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        local: torch.Tensor,
        compressor: torch.Tensor,
        decompressors: torch.Tensor,
        bias: torch.Tensor | None,
        ranks: Communicator,
    ) -> torch.Tensor:
        ghosts = start_gather(ranks, compressor, x)
        z = torch.nn.functional.linear(x, local, bias)  # (b, m_out)
        others = ghosts.finish()  # ((p-1) k, b)
        torch.addmm(z, others.t(), decompressors.t(), out=z)
        ctx.save_for_backward(x, others, local, compressor, decompressors)
        ctx.ranks = ranks
        return z

    @staticmethod
    @backward_of
    def backward(ctx: Any, delta: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, others, local, compressor, decompressors = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        ghosts = start_reduce(ctx.ranks, decompressors, delta)
        dx = delta @ local if wanted[0] else None  # (b, m)
        # First the small one: what is beside waits for all that is in line before it.
        with ctx.ranks.beside(decompressors, delta, others):
            d_decompressors = delta.t() @ others.t() if wanted[3] else None
        with ctx.ranks.beside(local, delta, x):
            d_local = delta.t() @ x if wanted[1] else None
            d_bias = delta.sum(0) if wanted[4] else None
        h = ghosts.finish()  # (k, b)
        if dx is not None:
            torch.addmm(dx, h.t(), compressor, out=dx)
        with ctx.ranks.beside(compressor, h, x):
            d_compressor = h @ x if wanted[2] else None
        return dx, d_local, d_compressor, d_decompressors, d_bias, None


class PhantomLinear(SplitLinear):
    """z_j = x_j L_j^T + sum_{i != j} g_i D_ji^T + bias_j, with the ghosts g_i = x_i C_i^T of the other ranks.

                 | L_0       D_01 C_1  D_02 C_2 |
        W_eq  =  | D_10 C_0  L_1       D_12 C_2 |     L_j (m_out, m), C_i (k, m), D_ji (m_out, k), m = n/p
                 | D_20 C_0  D_21 C_1  L_2      |

    Backward, with delta_j = dloss/dz_j: h_i = sum_{j != i} delta_j D_ji by one reduce-scatter; dx_i =
    delta_i L_i + h_i C_i; dL_j = delta_j^T x_j; dD_ji = delta_j^T g_i; dC_i = h_i^T x_i.

    Ghosts come first; while they are gathered the local GEMM runs, then one GEMM over all decompressors.
    Backward likewise, with the reduce-scatter behind the local GEMMs. Ghosts travel feature-major, (k, b),
    so that neither exchange is permuted.

    Parameters on rank j: `local` L_j (m_out, m); `compressor` C_j (k, m); `decompressors` (m_out, (p-1) k),
    the p - 1 blocks D_ji side by side in the order of `sources`; `bias` (m_out,) or None. There is no block
    for a rank's own ghosts, so nothing has to be masked, and counting the parameters counts the weights.
    With one rank the layer is dense: `compressor` and `decompressors` are None.

    Args:
        in_features: Inputs over all ranks, n.
        out_features: Outputs over all ranks.
        ghosts: Compressed activations that each rank sends, k; fewer than n/p.
        bias: Whether to add a bias.
        group: The ranks; see `SplitLinear`.
        device: Where the weights live.
        dtype: Their number format.

    Raises:
        LayoutError: A size is not divisible by the number of ranks, or `ghosts` is out of range.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        ghosts: int,
        bias: bool = True,
        group: Group = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, group, device, dtype, ghosts=ghosts, bias=bias)
        own_in, own_out = self._shard("in_features", in_features), self._shard("out_features", out_features)
        if not 1 <= ghosts < own_in:
            raise LayoutError(
                f"ghosts = {ghosts}; each of {self.world_size} ranks has {own_in} of {in_features} inputs "
                f"and must send fewer than it has: 1 to {own_in - 1}"
            )
        self.ghosts = ghosts
        self.local = self._weight(own_out, own_in)
        exchanges = self.world_size > 1
        self.compressor = self._weight(ghosts, own_in) if exchanges else None
        self.decompressors = self._weight(own_out, (self.world_size - 1) * ghosts) if exchanges else None
        self.bias = self._bias(bias, own_out)
        self.reset_parameters()

    @property
    def sources(self) -> tuple[int, ...]:
        """The rank whose ghosts each block of `decompressors` reads, in the order of the blocks."""
        return ghost_sources(self.rank, self.world_size)

    def _transform(self, x: torch.Tensor) -> torch.Tensor:
        if self.compressor is None:
            return local_linear(x, self.local, self.bias, self.communicator)
        return apply_function(
            _Phantom, x, self.local, self.compressor, self.decompressors, self.bias, self.communicator
        )

    def reset_parameters(self, generator: torch.Generator | None = None, gain: float = 1.0) -> None:
        """Every entry of W_eq gets the dense layer's variance, gain^2 / n.

            Var L = gain^2 / n        Var C = 1 / k        Var D = gain^2 / n

        Off the diagonal an entry is a sum of k products, of variance k Var D Var C = gain^2 / n; on it, Var L.
        So z_j gets m gain^2 / n = gain^2 / p of its variance from its own inputs, and from ghosts
        (p - 1) k Var D m Var C = gain^2 (p - 1) / p: Var z = gain^2 E[x^2], as in the dense layer. Backward
        the same holds for dx, with L, C and D transposed.

        Any split of the product between C and D would give this Var z. Here a rank's ghosts are as long a
        vector as the inputs that they stand for, E|g|^2 = k m Var C E[x^2] = m E[x^2], and decompressors are
        drawn as dense weights are. That keeps training alike, too: in a step of SGD at a dense layer's
        learning rate dD moves z as far as the off-diagonal dense weights would (|g|^2 = |x|^2), and dC at
        most about gain^2 times as far, whatever m / k is.
        """
        generator = self._generator(generator)
        fill_normal(self.local, gain**2 / self.in_features, generator)
        if self.compressor is not None and self.decompressors is not None:
            fill_normal(self.compressor, 1 / self.ghosts, generator)
            fill_normal(self.decompressors, gain**2 / self.in_features, generator)
        self._zero_bias()

    def dense_equivalent(self) -> torch.Tensor:
        """W_eq (n_out, n): L_j on the diagonal, D_ji C_i off it, detached."""
        local = self.communicator.from_all_ranks(self.local)
        if self.compressor is None or self.decompressors is None:
            return local[0]
        compressors = self.communicator.from_all_ranks(self.compressor)
        rows = []
        for j, decompressors in enumerate(self.communicator.from_all_ranks(self.decompressors)):
            parts = decompressors.chunk(self.world_size - 1, 1)
            blocks = dict(zip(ghost_sources(j, self.world_size), parts, strict=True))
            rows.append(
                torch.cat(
                    [local[j] if i == j else blocks[i] @ compressors[i] for i in range(self.world_size)], 1
                )
            )
        return torch.cat(rows, 0)
