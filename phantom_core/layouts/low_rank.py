"""Low rank: W = U V with r inner values, the control that compresses without keeping a local block whole."""

from typing import Any

import torch

from phantom_core.collectives import Communicator
from phantom_core.initialization import fill_normal
from phantom_core.layouts.base import Group, LayoutError, SplitLinear, apply_function, backward_of
from phantom_core.layouts.local_linear import local_linear


class _LowRank(torch.autograd.Function):
    """z_j = (sum_i x_i V_i^T) U_j^T + bias_j; r values cross in each direction."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        inner: torch.Tensor,
        outer: torch.Tensor,
        bias: torch.Tensor | None,
        ranks: Communicator,
    ) -> torch.Tensor:
        y = x @ inner.t()  # (b, r)
        ranks.all_reduce(y).wait()
        ctx.save_for_backward(x, y, inner, outer)
        ctx.ranks = ranks
        return torch.nn.functional.linear(y, outer, bias)

    @staticmethod
    @backward_of
    def backward(ctx: Any, delta: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, y, inner, outer = ctx.saved_tensors
        dy = delta @ outer  # (b, r)
        pending = ctx.ranks.all_reduce(dy)
        with ctx.ranks.beside(outer, delta, y):
            d_outer = delta.t() @ y if ctx.needs_input_grad[2] else None
            d_bias = delta.sum(0) if ctx.needs_input_grad[3] else None
        pending.wait()
        dx = dy @ inner if ctx.needs_input_grad[0] else None
        with ctx.ranks.beside(inner, dy, x):
            d_inner = dy.t() @ x if ctx.needs_input_grad[1] else None
        return dx, d_inner, d_outer, d_bias, None


class LowRankLinear(SplitLinear):
    """z_j = y U_j^T + bias_j, y = sum_i x_i V_i^T (b, r) by one all-reduce; W_eq = U V.

    V_j (r, n/p) is `inner` (split by input), U_j (n_out/p, r) is `outer` (split by output). Backward: dy =
    sum_j delta_j U_j by one all-reduce, behind which dU_j = delta_j^T y is computed; dx_j = dy V_j; dV_j =
    dy^T x_j.

    Args:
        in_features: Inputs over all ranks, n.
        out_features: Outputs over all ranks.
        rank: Inner values, r; at most the smaller of both.
        bias: Whether to add a bias.
        group: The ranks; see `SplitLinear`.
        device: Where the weights live.
        dtype: Their number format.

    Raises:
        LayoutError: A size is not divisible by the number of ranks, or the rank is out of range.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        rank: int,
        bias: bool = True,
        group: Group = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, group, device, dtype, rank=rank, bias=bias)
        if not 1 <= rank <= min(in_features, out_features):
            raise LayoutError(
                f"rank = {rank}; a {out_features} x {in_features} weight has a rank of 1 to "
                f"{min(in_features, out_features)}"
            )
        own_out = self._shard("out_features", out_features)
        self.inner = self._weight(rank, self._shard("in_features", in_features))
        self.outer = self._weight(own_out, rank)
        self.bias = self._bias(bias, own_out)
        self.reset_parameters()

    def _transform(self, x: torch.Tensor) -> torch.Tensor:
        if self.world_size == 1:
            y = local_linear(x, self.inner, None, self.communicator)
            return local_linear(y, self.outer, self.bias, self.communicator)
        return apply_function(_LowRank, x, self.inner, self.outer, self.bias, self.communicator)

    def reset_parameters(self, generator: torch.Generator | None = None, gain: float = 1.0) -> None:
        """Var V = 1 / r and Var U = gain^2 / n give Var z = gain^2 E[x^2], as in the dense layer.

        The inner values are as long a vector as the inputs, E|y|^2 = r n Var V E[x^2] = n E[x^2], so that
        Var z = Var U E|y|^2 = gain^2 E[x^2]. Why this split of the product: see `PhantomLinear`.
        """
        generator = self._generator(generator)
        fill_normal(self.inner, 1 / self.inner.shape[0], generator)
        fill_normal(self.outer, gain**2 / self.in_features, generator)
        self._zero_bias()

    def dense_equivalent(self) -> torch.Tensor:
        """U V (n_out, n), detached."""
        inner = torch.cat(self.communicator.from_all_ranks(self.inner), 1)
        return torch.cat(self.communicator.from_all_ranks(self.outer), 0) @ inner
