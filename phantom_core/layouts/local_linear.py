"""z = x W^T + bias on one rank alone: what a layer is that exchanges nothing."""

from typing import Any

import torch

from phantom_core.collectives import Communicator
from phantom_core.layouts.base import apply_function, backward_of

Gradients = tuple[torch.Tensor | None, ...]
"""Of a function's inputs, in their order; None where none is wanted."""


class _LocalLinear(torch.autograd.Function):
    """As torch.nn.functional.linear, but for where the weight's gradient is made."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, ranks: Communicator
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.ranks = ranks
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    @backward_of
    def backward(ctx: Any, delta: torch.Tensor) -> Gradients:
        """See `local_gradients`."""
        return local_gradients(ctx, delta)


def local_gradients(ctx: Any, delta: torch.Tensor) -> Gradients:
    """Backward of z = x W^T + bias where delta is whole: dx = delta W, dW = delta^T x, dbias = sum of delta.

    Args:
        ctx: Has saved x and W, and has the ranks.
        delta: dloss/dz (b, n_out).

    Returns:
        Gradients of x, W, bias and the ranks, those that are wanted.
    """
    x, weight = ctx.saved_tensors
    dx = delta @ weight if ctx.needs_input_grad[0] else None
    d_weight, d_bias = None, None
    with ctx.ranks.beside(weight, delta, x):
        if ctx.needs_input_grad[1]:
            d_weight = delta.t() @ x
        if ctx.needs_input_grad[2]:
            d_bias = delta.sum(0)
    return dx, d_weight, d_bias, None


def local_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, ranks: Communicator
) -> torch.Tensor:
    """Applies it.

    Args:
        x: Inputs (b, n).
        weight: W (n_out, n).
        bias: Bias (n_out,), or None.
        ranks: Whose `beside` says where the weight's gradient is made.

    Returns:
        z (b, n_out).
    """
    return apply_function(_LocalLinear, x, weight, bias, ranks)
