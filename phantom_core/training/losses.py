"""The two losses, as means over rows to train on and as sums to evaluate with."""

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


def terms(shape: TaskShape, rows: int) -> int:
    """How many terms the sum over rows has: the mean is the sum divided by it."""
    return rows if shape.loss == "cross_entropy" else rows * shape.outputs
