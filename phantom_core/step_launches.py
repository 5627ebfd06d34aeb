"""How many kernels a step launches besides its layers': the update of the weights, and bookkeeping. Torch-free.

They follow `training.optimizers`, `training.losses` and `training.steps`; tests count the operations of real steps.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phantom_core.cost import LEAST_IN_ONE_PASS
from phantom_core.spec import Dtype, TensorArm
from phantom_core.task_shapes import TaskShape

if TYPE_CHECKING:
    from phantom_core.plan import PlannedArm


def bookkeeping_launches(shape: TaskShape, dtype: Dtype) -> int:
    """Small kernels around the layers: rows, features, targets, rate, loss and its gradient, and keeping the loss.

    Args:
        shape: Says which loss.
        dtype: The model's number format.

    Returns:
        Launches per step.
    """
    looked_up, kept = 4, 2
    if shape.loss == "mean_squared_error":
        return looked_up + kept + 4  # difference, gradient; its square, their mean
    # Logarithms of shares, their loss, the gradients of both from a one; bfloat16 outputs are widened and back.
    return looked_up + kept + 5 + (2 if dtype == "bfloat16" else 0)


def update_launches(
    planned: "PlannedArm", layers: Sequence[tuple[tuple[int, ...], int]], *, one_pass: bool
) -> int:
    """Kernels of a step's update.

    Beside backward every layer is updated by itself, at the step's end all of them together. Torch's optimizers take
    one fused kernel, AdamW's one more to count steps, and bfloat16 weights two copies: of gradients to float32, and of
    masters back. Where there are one-pass kernels one of them takes a bfloat16 layer, without copies; at the end torch
    still takes the small weights.

    Args:
        planned: The arm, its number format and recipe.
        layers: Numbers of each weight of a layer on the rank, and how many such layers there are.
        one_pass: Whether bfloat16 weights can be updated in one pass (`training.update_kernels`).

    Returns:
        Launches per step; of torch's kernels one where weights are few enough for it.
    """
    counter = int(planned.training.optimizer == "adamw")
    rounded = planned.model.dtype == "bfloat16"
    by_torch = counter + 1 + (2 if rounded else 0)
    count = sum(number for _, number in layers)
    if updates_beside_backward(planned):
        return count * (counter + 1 if rounded and one_pass else by_torch)
    if not (rounded and one_pass):
        return by_torch
    # A layer's kernel takes its large weights; one call counts the steps of them all.
    large = sum(number for weights, number in layers if max(weights) >= LEAST_IN_ONE_PASS)
    small = any(min(weights) < LEAST_IN_ONE_PASS for weights, _ in layers)
    return (large + counter if large else 0) + (by_torch if small else 0)


def updates_beside_backward(planned: "PlannedArm") -> bool:
    """Whether layers are updated one by one; a compiled backward pass hands over all gradients at its end."""
    arm = planned.arm
    compiled = isinstance(arm, TensorArm) and arm.compiled
    return planned.training.update == "overlapped" and not compiled
