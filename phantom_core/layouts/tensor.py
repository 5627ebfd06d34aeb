"""Tensor parallelism: every rank holds a slice of every weight; activations or partial sums are exchanged.

- gather form, shard to shard: `TensorGatherLinear` (the baseline of arXiv 2508.00960)
- column/row pairs (Megatron, arXiv 1909.08053): `TensorRowLinear`, shard to full, and `TensorColumnLinear`,
  full to shard; one all-reduce per pair in each direction
"""

from typing import ClassVar

import torch

from phantom_core.initialization import fill_normal
from phantom_core.layouts.base import Group, SplitLinear, apply_function
from phantom_core.layouts.local_linear import local_linear
from phantom_core.layouts.tensor_exchange import ColumnSplit, GatherForm, RowReduced, RowScattered


class _TensorLinear(SplitLinear):
    """A slice of W per rank, of whole rows (split by output) or of whole columns (split by input)."""

    weight: torch.nn.Parameter
    _split_dimension: ClassVar[int] = 0
    _exchange: type[torch.autograd.Function]

    def _transform(self, x: torch.Tensor) -> torch.Tensor:
        if self.world_size == 1:
            return local_linear(x, self.weight, self.bias, self.communicator)
        return apply_function(self._exchange, x, self.weight, self.bias, self.communicator)

    def reset_parameters(self, generator: torch.Generator | None = None, gain: float = 1.0) -> None:
        """Var W = gain^2 / n: a neuron sees all n inputs, as in the dense layer."""
        fill_normal(self.weight, gain**2 / self.in_features, self._generator(generator))
        self._zero_bias()

    def dense_equivalent(self) -> torch.Tensor:
        """W (n_out, n): the ranks' slices joined, detached."""
        return torch.cat(self.communicator.from_all_ranks(self.weight), self._split_dimension)


class TensorGatherLinear(_TensorLinear):
    """z_j = x W_j^T + bias_j with x all-gathered: W_j (n_out/p, n) is rank j's rows of W; shard to shard.

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

    _exchange = GatherForm

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


class TensorColumnLinear(_TensorLinear):
    """z_j = x W_j^T + bias_j with x (b, n) on every rank: W_j (n_out/p, n) is rank j's rows; full to shard.

    Forward sends nothing; backward all-reduces dx = sum_j delta_j W_j, if x needs a gradient.

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
    _exchange = ColumnSplit

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


class TensorRowLinear(_TensorLinear):
    """z = sum_j x_j W_j^T + bias: W_j (n_out, n/p) is rank j's columns of W; shard to full or to shard.

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

    _split_dimension = 1

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
        self._exchange = RowScattered if scatter_output else RowReduced
        self.weight = self._weight(out_features, self._shard("in_features", in_features))
        own_out = self._shard("out_features", out_features) if scatter_output else out_features
        self.bias = self._bias(bias, own_out)
        self.reset_parameters()
