"""A phantom layer that exchanges as it computes: the maths of `phantom.py` in three kernels forward."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from phantom_core.collectives import Communicator
from phantom_core.layouts.base import apply_function

if TYPE_CHECKING:
    from phantom_core.layouts.phantom import PhantomLinear


class _Direct(torch.autograd.Function):
    """The layer between two ReLUs, or without any; see `direct_exchange` for who sends what where."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        local: torch.Tensor,
        compressor: torch.Tensor,
        decompressors: torch.Tensor,
        bias: torch.Tensor | None,
        ranks: Communicator,
        between_relus: bool,
        masked_later: bool,
    ) -> torch.Tensor:
        exchange = ranks.direct_exchange
        assert exchange is not None, "asked for by `PhantomLinear.goes_direct`"
        ghosts = compressor.shape[0] * x.shape[0] * ranks.world_size
        ranks.count("all_gather", ghosts, x.element_size(), fused=True)
        exchange.send_ghosts(x, compressor)
        z = torch.nn.functional.linear(x, local, bias)  # (b, m_out)
        others = exchange.receive_ghosts(z, decompressors, relu=between_relus)  # (b, (p-1) k)
        ctx.masks = between_relus and not masked_later
        ctx.save_for_backward(x, others, local, compressor, decompressors, *([z] if ctx.masks else []))
        ctx.ranks, ctx.between_relus = ranks, between_relus
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, others, local, compressor, decompressors, *activated = ctx.saved_tensors
        wanted, ranks = ctx.needs_input_grad, ctx.ranks
        exchange = ranks.direct_exchange
        if activated:
            delta = torch.ops.aten.threshold_backward(delta, activated[0], 0)
        delta = delta.contiguous()
        ghosts = compressor.shape[0] * x.shape[0] * ranks.world_size
        ranks.count("reduce_scatter", ghosts, x.element_size(), fused=True)
        exchange.send_contributions(delta, decompressors)
        with ranks.beside(decompressors, delta, others):
            d_decompressors = delta.t() @ others if wanted[3] else None
        dx = delta @ local  # (b, m); wanted or not, the other ranks' gradients come with it
        with ranks.beside(local, delta, x):
            d_local = delta.t() @ x if wanted[1] else None
            d_bias = delta.sum(0) if wanted[4] else None
        h = exchange.receive_gradient(dx, compressor, x if ctx.between_relus else None)  # (b, k)
        with ranks.beside(compressor, h, x):
            d_compressor = h.t() @ x if wanted[2] else None
        return dx if wanted[0] else None, d_local, d_compressor, d_decompressors, d_bias, None, None, None


def direct(
    layer: "PhantomLinear", x: torch.Tensor, *, between_relus: bool = False, masked_later: bool = False
) -> torch.Tensor:
    """Applies a layer.

    Args:
        layer: One for which `goes_direct(x)` holds.
        x: Inputs (b, m).
        between_relus: Whether ReLU made x and is applied to z: dx then carries the gradient of x's ReLU already.
        masked_later: Whether whatever reads the result does likewise, so that this layer need not.

    Returns:
        z (b, m_out), or max(z, 0).
    """
    return apply_function(
        _Direct,
        x.contiguous(),
        layer.local,
        layer.compressor,
        layer.decompressors,
        layer.bias,
        layer.communicator,
        between_relus,
        masked_later,
    )


def through(layers: Sequence["PhantomLinear"], x: torch.Tensor) -> torch.Tensor:
    """Layers with ReLU after each, none of which is a pass of its own, forward or backward.

    Args:
        layers: Some for which `goes_direct(x)` holds.
        x: What ReLU made (b, m).

    Returns:
        The last one's max(z, 0).
    """
    for number, layer in enumerate(layers, 1):
        x = direct(layer, x, between_relus=True, masked_later=number < len(layers))
    return x
