"""PyTorch's own tensor parallelism as a layout: the outside peer that `tensor.py` must not be slower than.

Importing this loads `torch.distributed.tensor`, which takes a second or two; `ffn.py` does so only for an arm
that asks for it.
"""

from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from phantom_core.initialization import fill_normal
from phantom_core.layouts.base import Group, SplitLinear
from phantom_core.layouts.local_part import local_part

Style = Literal["gather", "column", "row", "row_scatter"]
"""As the native layers: gather form, column (full to shard), row (shard to full), row to shard."""


class DTensorLinear(SplitLinear):
    """`torch.nn.Linear`, split by `torch.distributed.tensor.parallel.parallelize_module`.

    Weights are DTensors, exchanges are PyTorch's functional collectives, and torch.compile can see through
    all of it. A rank's part of the weight is the native layer's of the same style, drawn from the same
    numbers; a row layer's bias is replicated, also where its output is scattered. One rank has a plain
    `nn.Linear`.

    Args:
        in_features: Inputs over all ranks, n.
        out_features: Outputs over all ranks.
        style: How the weight is split, and where input and output live.
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
        style: Style,
        bias: bool = True,
        group: Group = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, group, device, dtype, bias=bias, style=style)
        if style != "column":
            self._shard("in_features", in_features)
        if style != "row":
            self._shard("out_features", out_features)
        self.style: Style = style
        by_input = style in ("row", "row_scatter")
        self._split_dimension = 1 if by_input else 0
        self.input_placement = "full" if style == "column" else "shard"
        self.output_placement = "full" if style == "row" else "shard"
        self.replicated = frozenset({"linear.bias"}) if by_input else frozenset()
        self.bias = None  # it is the inner layer's
        # On the meta device, so that parallelize_module splits sizes and sends no values.
        self.linear = nn.Linear(in_features, out_features, bias, device="meta", dtype=self._dtype)
        if self.world_size > 1:
            parallelize_module(self.linear, _mesh(self.communicator.group), _parallel_style(style))
        if self._device.type != "meta":
            self.to_empty(device=self._device)
        self.reset_parameters()

    def _transform(self, x: torch.Tensor) -> torch.Tensor:
        z: torch.Tensor = self.linear(x)
        return z

    def reset_parameters(self, generator: torch.Generator | None = None, gain: float = 1.0) -> None:
        """Var W = gain^2 / n, as in the native layers."""
        fill_normal(
            local_part(self.linear.weight.detach()), gain**2 / self.in_features, self._generator(generator)
        )
        if self.linear.bias is not None:
            nn.init.zeros_(local_part(self.linear.bias.detach()))

    def dense_equivalent(self) -> torch.Tensor:
        """W (n_out, n): the ranks' slices joined, detached."""
        own = local_part(self.linear.weight.detach())
        return torch.cat(self.communicator.from_all_ranks(own), self._split_dimension)

    def dense_bias(self) -> torch.Tensor | None:
        """The whole bias (out_features,) on every rank, detached; every rank must call it."""
        if self.linear.bias is None:
            return None
        own = local_part(self.linear.bias.detach())
        return own.clone() if self.replicated else torch.cat(self.communicator.from_all_ranks(own))


def _parallel_style(style: Style) -> ParallelStyle:
    match style:
        case "gather":
            return ColwiseParallel(input_layouts=Shard(-1), output_layouts=Shard(-1))
        case "column":
            return ColwiseParallel(input_layouts=Replicate(), output_layouts=Shard(-1))
        case "row":
            return RowwiseParallel(input_layouts=Shard(-1), output_layouts=Replicate())
        case "row_scatter":
            return RowwiseParallel(input_layouts=Shard(-1), output_layouts=Shard(-1))


def _mesh(group: dist.ProcessGroup | None) -> DeviceMesh:
    """The group as DTensor wants it: NCCL's ranks compute on CUDA, gloo's on the CPU."""
    assert group is not None, "several ranks have a group"
    return DeviceMesh.from_group(group, "cuda" if dist.get_backend(group) == "nccl" else "cpu")
