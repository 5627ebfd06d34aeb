"""Tensor parallelism: every rank holds a slice of every weight; partial activations or sums are exchanged.

- gather form, shard -> shard: `TensorGatherLinear` (baseline of arXiv 2508.00960)
- column/row pairs (Megatron, arXiv 1909.08053): `TensorRowLinear` shard -> full, `TensorColumnLinear` full -> shard;
  one all-reduce per pair in each direction

Gathered and scattered tensors are kept feature-major, (features, b), so that a rank's part is one contiguous piece and
neither exchange copies; the (b, features) tensors that go in and out are views of them.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from phantom_core.collectives import Communicator
from phantom_core.initialization import fill_normal
from phantom_core.layouts.base import Group, SplitLinear


class _Gather(torch.autograd.Function):
    """z_j = x W_j^T with x gathered; dx by one reduce-scatter, behind which dW_j is computed."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, ranks: Communicator
    ) -> torch.Tensor:
        own = x.t().contiguous()  # (n/p, b)
        gathered = own.new_empty(weight.shape[1], x.shape[0])  # (n, b)
        ranks.all_gather(gathered, own).wait()
        z = weight @ gathered  # (n_out/p, b)
        if bias is not None:
            z += bias[:, None]
        ctx.save_for_backward(gathered, weight)
        ctx.ranks = ranks
        return z.t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gathered, weight = ctx.saved_tensors
        dx_own, pending = None, None
        if ctx.needs_input_grad[0]:
            dx = weight.t() @ delta.t()  # (n, b)
            dx_own = dx.new_empty(dx.shape[0] // ctx.ranks.world_size, dx.shape[1])
            pending = ctx.ranks.reduce_scatter(dx_own, dx)
        d_weight = delta.t() @ gathered.t() if ctx.needs_input_grad[1] else None
        d_bias = delta.sum(0) if ctx.needs_input_grad[2] else None
        if pending is not None:
            pending.wait()
        return None if dx_own is None else dx_own.t(), d_weight, d_bias, None


class _Column(torch.autograd.Function):
    """z_j = x W_j^T + bias_j; dx by one all-reduce, behind which dW_j is computed."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, ranks: Communicator
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.ranks = ranks
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dx, pending = None, None
        if ctx.needs_input_grad[0]:
            dx = delta @ weight  # (b, n)
            pending = ctx.ranks.all_reduce(dx)
        d_weight = delta.t() @ x if ctx.needs_input_grad[1] else None
        d_bias = delta.sum(0) if ctx.needs_input_grad[2] else None
        if pending is not None:
            pending.wait()
        return dx, d_weight, d_bias, None


class _RowReduce(torch.autograd.Function):
    """z = sum_j x_j W_j^T + bias on every rank; the gradient of z is equal on all ranks and passes unchanged."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, ranks: Communicator
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        # The bias enters the sum once, on rank 0, where the GEMM adds it for nothing.
        z = torch.nn.functional.linear(x, weight, bias if ranks.rank == 0 else None)  # (b, n_out)
        ranks.all_reduce(z).wait()
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dx = delta @ weight if ctx.needs_input_grad[0] else None
        d_weight = delta.t() @ x if ctx.needs_input_grad[1] else None
        d_bias = delta.sum(0) if ctx.needs_input_grad[2] else None
        return dx, d_weight, d_bias, None


class _RowScatter(torch.autograd.Function):
    """z_j = rank j's part of sum_i x_i W_i^T, + bias_j; backward gathers the other parts' gradients."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, ranks: Communicator
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.ranks = ranks
        partial = weight @ x.t()  # (n_out, b)
        z = partial.new_empty(partial.shape[0] // ranks.world_size, partial.shape[1])  # (n_out/p, b)
        ranks.reduce_scatter(z, partial).wait()
        if bias is not None:
            z += bias[:, None]
        return z.t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        own = delta.t().contiguous()  # (n_out/p, b)
        gathered = own.new_empty(weight.shape[0], own.shape[1])  # (n_out, b)
        pending = ctx.ranks.all_gather(gathered, own)
        d_bias = delta.sum(0) if ctx.needs_input_grad[2] else None
        pending.wait()
        dx = gathered.t() @ weight if ctx.needs_input_grad[0] else None
        d_weight = gathered @ x if ctx.needs_input_grad[1] else None
        return dx, d_weight, d_bias, None


class TensorGatherLinear(SplitLinear):
    """z_j = x W_j^T + bias_j with x all-gathered: W_j (n_out/p, n) is rank j's rows of W.

    Backward: dx = delta_j W_j (b, n), reduce-scattered to dx_j; dW_j = delta_j^T x.

    Args:
        in_features: Inputs over all ranks, n.
        out_features: Outputs over all ranks.
        bias: Whether to add a bias.
        group: The ranks; see `SplitLinear`.
        device: Where the weights live.
        dtype: Their number format.

    Raises:
        LayoutError: A size is not divisible by the number of ranks.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        group: Group = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, group, device, dtype, bias=bias)
        self._shard("in_features", in_features)
        own_out = self._shard("out_features", out_features)
        self.weight = self._weight(own_out, in_features)
        self.bias = self._bias(bias, own_out)
        self.reset_parameters()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x_j (b, n/p) -> z_j (b, n_out/p)."""
        if self.world_size == 1:
            return torch.nn.functional.linear(x, self.weight, self.bias)
        z: torch.Tensor = _Gather.apply(x, self.weight, self.bias, self.communicator)
        return z

    def reset_parameters(self, generator: torch.Generator | None = None, gain: float = 1.0) -> None:
        """Var W = gain^2 / n: a neuron sees all n inputs, as in the dense layer."""
        fill_normal(self.weight, gain**2 / self.in_features, self._generator(generator))
        self._zero_bias()

    def dense_equivalent(self) -> torch.Tensor:
        """W (n_out, n): the ranks' rows stacked, detached."""
        return torch.cat(self.communicator.from_all_ranks(self.weight), 0)


class TensorColumnLinear(SplitLinear):
    """z_j = x W_j^T + bias_j with x (b, n) known to every rank; split by output, W_j (n_out/p, n).

    Forward sends nothing; backward all-reduces dx = sum_j delta_j W_j (if x needs a gradient).

    Args:
        in_features: Inputs, n.
        out_features: Outputs over all ranks.
        bias: Whether to add a bias.
        group: The ranks; see `SplitLinear`.
        device: Where the weights live.
        dtype: Their number format.

    Raises:
        LayoutError: `out_features` is not divisible by the number of ranks.
    """

    input_placement = "full"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        group: Group = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, group, device, dtype, bias=bias)
        own_out = self._shard("out_features", out_features)
        self.weight = self._weight(own_out, in_features)
        self.bias = self._bias(bias, own_out)
        self.reset_parameters()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (b, n) -> z_j (b, n_out/p)."""
        if self.world_size == 1:
            return torch.nn.functional.linear(x, self.weight, self.bias)
        z: torch.Tensor = _Column.apply(x, self.weight, self.bias, self.communicator)
        return z

    def reset_parameters(self, generator: torch.Generator | None = None, gain: float = 1.0) -> None:
        """Var W = gain^2 / n: a neuron sees all n inputs, as in the dense layer."""
        fill_normal(self.weight, gain**2 / self.in_features, self._generator(generator))
        self._zero_bias()

    def dense_equivalent(self) -> torch.Tensor:
        """W (n_out, n): the ranks' rows stacked, detached."""
        return torch.cat(self.communicator.from_all_ranks(self.weight), 0)


class TensorRowLinear(SplitLinear):
    """z = sum_j x_j W_j^T + bias, split by input: W_j (n_out, n/p) is rank j's columns of W.

    The sum is all-reduced, so every rank has z (b, n_out), or, with `scatter_output`, reduce-scattered to z_j
    (b, n_out/p). All-reduced, z and its gradient are equal on all ranks, so backward sends nothing and the
    replicated bias stays equal by itself.

    Args:
        in_features: Inputs over all ranks, n.
        out_features: Outputs.
        bias: Whether to add a bias: replicated (n_out,), or this rank's (n_out/p,) with `scatter_output`.
        group: The ranks; see `SplitLinear`.
        device: Where the weights live.
        dtype: Their number format.
        scatter_output: Whether each rank gets its shard of z instead of all of it.

    Raises:
        LayoutError: `in_features` (or, scattered, `out_features`) is not divisible by the number of ranks.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        group: Group = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        scatter_output: bool = False,
    ) -> None:
        super().__init__(
            in_features, out_features, group, device, dtype, bias=bias, scatter_output=scatter_output
        )
        self.scatter_output = scatter_output
        self.output_placement = "shard" if scatter_output else "full"
        self.replicated = frozenset() if scatter_output else frozenset({"bias"})
        self.weight = self._weight(out_features, self._shard("in_features", in_features))
        self.bias = self._bias(
            bias, self._shard("out_features", out_features) if scatter_output else out_features
        )
        self.reset_parameters()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x_j (b, n/p) -> z (b, n_out), or z_j (b, n_out/p) with `scatter_output`."""
        if self.world_size == 1:
            return torch.nn.functional.linear(x, self.weight, self.bias)
        function = _RowScatter if self.scatter_output else _RowReduce
        z: torch.Tensor = function.apply(x, self.weight, self.bias, self.communicator)
        return z

    def reset_parameters(self, generator: torch.Generator | None = None, gain: float = 1.0) -> None:
        """Var W = gain^2 / n: a neuron sees all n inputs, as in the dense layer."""
        fill_normal(self.weight, gain**2 / self.in_features, self._generator(generator))
        self._zero_bias()

    def dense_equivalent(self) -> torch.Tensor:
        """W (n_out, n): the ranks' columns side by side, detached."""
        return torch.cat(self.communicator.from_all_ranks(self.weight), 1)
