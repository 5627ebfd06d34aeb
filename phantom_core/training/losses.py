"""The two losses, as means over rows to train on and as sums to evaluate with."""

from collections.abc import Callable
from typing import Literal

import torch
from torch.nn import functional

from phantom_core.task_shapes import TaskShape

Reduction = Literal["mean", "sum"]


def loss_dtype(model_dtype: torch.dtype) -> torch.dtype:
    """Losses are worked out in float64 for float64 models and in float32 for all others."""
    return torch.float64 if model_dtype == torch.float64 else torch.float32


def loss_of(
    shape: TaskShape, outputs: torch.Tensor, targets: torch.Tensor, reduction: Reduction = "mean"
) -> torch.Tensor:
    """Mean squared error over rows and outputs, or mean cross-entropy over rows in nats.

    Args:
        shape: Says which loss.
        outputs: (b, outputs) of the model.
        targets: (b, outputs) numbers or (b,) int64 classes.
        reduction: `sum` gives the sum over rows (and outputs) instead.

    Returns:
        A scalar.
    """
    outputs = outputs.to(loss_dtype(outputs.dtype))
    if shape.loss == "cross_entropy":
        return functional.cross_entropy(outputs, targets, reduction=reduction)
    return functional.mse_loss(outputs, targets, reduction=reduction)


def loss_gradient(
    shape: TaskShape, outputs: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, Callable[[], torch.Tensor]]:
    """The gradient of the mean loss, which the backward pass waits for; apart from it the loss, which nothing needs.

    The same numbers to the bit as autograd's of `loss_of`, in fewer kernels: on small networks a step is as long as the
    chain of its launches.

    Args:
        shape: Says which loss.
        outputs: (b, outputs) of the model.
        targets: (b, outputs) numbers or (b,) int64 classes.

    Returns:
        dloss/doutputs (b, outputs) in the outputs' number format, and what makes the loss, a scalar.
    """
    outputs = outputs.detach()
    if shape.loss == "cross_entropy":
        with torch.enable_grad():
            leaf = outputs.requires_grad_()
            loss = loss_of(shape, leaf, targets)
        (gradient,) = torch.autograd.grad(loss, leaf)
        return gradient, loss.detach
    with torch.no_grad():
        difference = outputs - targets  # in the wider format of both, which is the loss's
        gradient = torch.mul(difference, 2 / difference.numel(), out=torch.empty_like(outputs))
    return gradient, lambda: difference.square().mean()


def terms(shape: TaskShape, rows: int) -> int:
    """How many terms the sum over rows has: the mean is the sum divided by it."""
    return rows if shape.loss == "cross_entropy" else rows * shape.outputs
