"""What one training step does on one rank, in order: GEMMs, what is sent beside them, element-wise passes.

Torch-free. Tests hold its FLOPs and bytes to `cost.py`, which counts the same step without an order.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from phantom_core.layer_costs import features_per_rank, fits_fused, layer_costs
from phantom_core.layer_segments import LayerSegments, Segment, Transfer
from phantom_core.profile import Arithmetic
from phantom_core.spec import (
    Dtype,
    FeaturePlacement,
    TensorArm,
    TrainingSpec,
)
from phantom_core.step_launches import bookkeeping_launches, update_launches
from phantom_core.task_shapes import TaskShape

if TYPE_CHECKING:
    from phantom_core.plan import PlannedArm

BOOKKEEPING_IN_LINE = 4
"""Of the kernels of `step_launches.bookkeeping_launches` those that the network waits for: rows, features, the
difference, its gradient."""


@dataclass(frozen=True)
class StepWork:
    """One step on one rank."""

    segments: tuple[Segment, ...]
    """In order, repeated ones once."""
    element_bytes: int
    """Bytes of a weight or activation."""
    arithmetic: Arithmetic
    """How the GEMMs compute."""
    parameters: int
    """Trainable numbers on the rank."""
    update_bytes: int
    """Bytes that the optimizer reads and writes."""
    world_size: int
    """Ranks, p."""
    other_launches: int = 0
    """Kernels besides the segments': the update's and bookkeeping (`step_launches`)."""

    @property
    def flops(self) -> int:
        """FLOPs of all GEMMs."""
        return sum(gemm.flops * segment.count for segment in self.segments for gemm in segment.gemms)

    @property
    def transfers(self) -> list[Transfer]:
        """Every collective, in the order of segments."""
        return [
            each.transfer for each in self.segments for _ in range(each.count) if each.transfer is not None
        ]

    @property
    def least_memory_bytes(self) -> int:
        """Bytes to and from memory that no kernel can avoid.

        Every weight is read forward and backward and its gradient written; the optimizer reads and writes its
        state; activations of each element-wise pass count as they are.
        """
        passes = sum(sum(segment.passes_elements) * segment.count for segment in self.segments)
        return self.update_bytes + (3 * self.parameters + passes) * self.element_bytes

    def launches(self, *, fused: bool = True) -> int:
        """Kernels and collectives that the host starts in an eager step.

        Tests hold it to the operations of steps on CPUs. On GPUs there are a few more that no formula here knows:
        cuBLAS adds up products that it split along their inner dimension (split-K) by a kernel of its own, and torch
        deals large tensors out to several launches of one update.

        Args:
            fused: Whether the fused exchange carries what it can.
        """
        return self.other_launches + sum(
            self._launches_of(each, fused) * each.count for each in self.segments
        )

    def _launches_of(self, segment: Segment, fused: bool) -> int:
        kernels = len(segment.gemms) + len(segment.passes_elements) + segment.copies
        transfer = segment.transfer
        if transfer is None:
            return kernels
        fits = transfer.fusable and fits_fused(transfer.elements * self.element_bytes, self.world_size)
        return kernels + 1 + (0 if fused and fits else transfer.library_copies)


def update_bytes_per_parameter(training: TrainingSpec, dtype: Dtype) -> int:
    """Bytes that an update reads and writes for one weight, each tensor once.

    The gradient and the weight are read and the weight written; a moment is read and written. For bfloat16 the
    gradient (2) and the float32 master (4) are read, the master (4) and the weight rounded from it (2) written, as
    `update_kernels` does it; where torch's own optimizers do it in three passes it is 12 more.

    Args:
        training: Optimizer and momentum.
        dtype: The weights' number format.

    Returns:
        Bytes per weight.
    """
    moments = 2 if training.optimizer == "adamw" else int(training.momentum > 0)
    state_bytes = 8 if dtype == "float64" else 4
    # Both come to three times the weight's update format.
    return (3 + 2 * moments) * state_bytes


def step_work(
    planned: "PlannedArm", shape: TaskShape, placement: FeaturePlacement, *, one_pass: bool = True
) -> StepWork:
    """What a step of a planned arm does on one rank.

    Args:
        planned: The arm with its model and recipe; shapes must divide.
        shape: Features and outputs of the task.
        placement: Whether ranks see all features or a part each.
        one_pass: Whether bfloat16 weights can be updated in one pass, as on CUDA with Triton; only the number of
            launches depends on it.

    Returns:
        Its work.
    """
    from phantom_core.cost import arm_cost, bytes_per_number

    arm, model, training = planned.arm, planned.model, planned.training
    layers = LayerSegments(
        model.width,
        arm.world_size,
        training.batch_size,
        model.bias,
        activation=model.activation,
        by_dtensor=isinstance(arm, TensorArm) and arm.implementation == "dtensor",
    )
    hidden = layers.hidden(arm, model.depth)
    # Checkpointed activations are computed anew, collectives included, when backward needs them.
    again = [replace(each, phase="backward") for each in hidden if each.phase == "forward"]
    segments = [
        *layers.input(features_per_rank(shape, placement, arm.world_size)),
        *hidden,
        *(again if training.activation_checkpointing else []),
        *layers.output(shape.outputs),
    ]
    parameters = arm_cost(planned, shape, placement).parameters_per_rank
    weights = layer_costs(arm, model, shape, placement, training.batch_size)
    return StepWork(
        segments=tuple(segment for segment in segments if segment.count),
        element_bytes=bytes_per_number(model.dtype),
        arithmetic="tf32" if model.tf32 and model.dtype == "float32" else model.dtype,
        parameters=parameters,
        update_bytes=parameters * update_bytes_per_parameter(training, model.dtype),
        world_size=arm.world_size,
        other_launches=bookkeeping_launches(shape, model.dtype)
        + update_launches(planned, [(layer.weights, count) for layer, count in weights], one_pass=one_pass),
    )
