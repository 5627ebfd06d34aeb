"""What an arm costs, from formulas alone: parameters, FLOPs, bytes sent, memory. Torch-free.

One place for all of them: built models, counted FLOPs and counted bytes are held to these numbers by tests.

Letters: n width, p ranks, m = n / p, k ghosts per rank, r low rank, b batch, L depth, F features, O
outputs, e bytes per number. One multiply-add is 2 FLOPs; only matrix products are counted. Per hidden layer
and rank:

| layout         | parameters (weights)   | sent forward and again backward, bytes          |
|----------------|------------------------|-------------------------------------------------|
| tensor         | n m                    | gather: (p-1) b m e; column/row: (p-1) b m e    |
| phantom        | m^2 + k m + (p-1) k m  | (p-1) b k e                                     |
| block-diagonal | m^2                    | 0                                               |
| low-rank       | 2 r m                  | 2 (p-1)/p b r e                                 |

(column/row: one all-reduce of (b, n) per pair of layers and direction, 2 (p-1) b m e.) FLOPs are 2 b per
weight forward and twice that backward. So phantom sends fewer bytes than tensor iff k < m, has fewer
weights and FLOPs iff k < m (1 - 1/p), and at fixed n and k has the fewest in all ranks together near p =
sqrt(n / k).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phantom_core.layer_costs import Collective, LayerCost, bytes_sent, features_per_rank, layer_costs
from phantom_core.spec import Arm, Dtype, FeaturePlacement, ModelSpec, PhantomArm, TrainingSpec
from phantom_core.task_shapes import TaskShape

if TYPE_CHECKING:
    from phantom_core.plan import PlannedArm


LAYERS_PER_CHECKPOINT = 2
"""Hidden layers whose activations backward computes anew at a time, with activation checkpointing."""
LEAST_IN_ONE_PASS = 1 << 19
"""Numbers of a bfloat16 weight whose update at the step's end is worth a kernel of its own; smaller ones share
torch's. Beside backward (`training.update: overlapped`) each has its own."""


def bytes_per_number(dtype: Dtype) -> int:
    """Bytes of one weight or activation."""
    return {"float64": 8, "float32": 4, "bfloat16": 2}[dtype]


@dataclass(frozen=True)
class CollectiveCost:
    """Collectives of one kind in one training step, on one rank."""

    kind: Collective
    """Which collective."""
    calls: int
    """How many."""
    bytes_sent: int
    """Bytes that this rank sends in all of them."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on one rank. An estimate: allocator, framework, kernels' workspaces and data sets come on top."""

    weights_bytes: int
    """Parameters."""
    gradients_bytes: int
    """Their gradients."""
    optimizer_bytes: int
    """AdamW's two moments or SGD's momentum; for bfloat16 also float32 masters, and float32 gradients of those that
    are not updated in one pass (`training.optimizers`)."""
    activations_bytes: int
    """One batch of features and targets, what backward needs, and the outputs with their gradient."""
    transient_bytes: int
    """The most of what lives for a moment: a layer's gradients of activations and exchange buffers, and activations
    computed anew; or what the loss is made from, before there are weights' gradients."""

    @property
    def state_bytes(self) -> int:
        """What stays from step to step: weights, gradients, optimizer state."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes

    @property
    def peak_bytes(self) -> int:
        """All of them together: the step's highest point, early in backward or at the loss."""
        return self.state_bytes + self.activations_bytes + self.transient_bytes


@dataclass(frozen=True)
class ArmCost:
    """What one arm costs; a step is forward and backward of one batch, without the optimizer's arithmetic."""

    world_size: int
    """Ranks, p."""
    parameters: int
    """Trainable numbers over all ranks, replicated ones counted once."""
    parameters_per_rank: int
    """Trainable numbers that one rank holds."""
    forward_flops_per_rank: int
    """FLOPs of one forward pass on one rank."""
    step_flops_per_rank: int
    """FLOPs of one step on one rank."""
    collectives: tuple[CollectiveCost, ...]
    """What one rank sends in one step, by kind."""
    memory: MemoryEstimate
    """On one rank."""
    notes: tuple[str, ...] = ()
    """What the formulas say about the arm's settings, for people."""

    @property
    def step_flops(self) -> int:
        """FLOPs of one step over all ranks."""
        return self.step_flops_per_rank * self.world_size

    @property
    def bytes_sent_per_rank(self) -> int:
        """Bytes that one rank sends in one step."""
        return sum(collective.bytes_sent for collective in self.collectives)

    @property
    def bytes_sent(self) -> int:
        """Bytes sent in one step over all ranks."""
        return self.bytes_sent_per_rank * self.world_size

    @property
    def collective_calls(self) -> int:
        """Collectives that one rank takes part in, in one step."""
        return sum(collective.calls for collective in self.collectives)


def arm_cost(
    planned: "PlannedArm", shape: TaskShape, placement: FeaturePlacement, *, one_pass: bool = True
) -> ArmCost:
    """What a planned arm costs per step and rank.

    Args:
        planned: The arm with its model and recipe; shapes must divide (`checks.check` says where they don't).
        shape: Features and outputs of the task.
        placement: Whether ranks see all features or a part each.
        one_pass: Whether bfloat16 weights can be updated in one pass, as on CUDA with Triton
            (`training.update_kernels`); elsewhere every one has a float32 gradient. Only memory depends on it.

    Returns:
        Its cost.
    """
    arm, model, training = planned.arm, planned.model, planned.training
    p, b, element_bytes = arm.world_size, training.batch_size, bytes_per_number(model.dtype)
    layers = layer_costs(arm, model, shape, placement, b)
    own = sum(layer.own_parameters * count for layer, count in layers)
    replicated = sum(layer.replicated_parameters * count for layer, count in layers)
    forward = sum(layer.forward_flops * count for layer, count in layers)
    backward = sum(layer.backward_flops * count for layer, count in layers)
    anew = layers[1:-1] if training.activation_checkpointing else []
    forward_again = sum(layer.forward_flops * count for layer, count in anew)
    return ArmCost(
        world_size=p,
        parameters=own * p + replicated,
        parameters_per_rank=own + replicated,
        forward_flops_per_rank=forward,
        step_flops_per_rank=forward + backward + forward_again,
        collectives=_collectives(layers, anew, element_bytes, p),
        memory=_memory(
            layers,
            model,
            training,
            own + replicated,
            b * features_per_rank(shape, placement, p) * element_bytes,
            _loss_bytes(shape, model.dtype, b),
            one_pass,
        ),
        notes=tuple(_notes(arm, model)),
    )


def arm_parameters(arm: Arm, model: ModelSpec, shape: TaskShape, placement: FeaturePlacement) -> int:
    """Trainable numbers of an arm over all ranks, replicated ones counted once."""
    layers = layer_costs(arm, model, shape, placement, batch=1)
    return sum(
        (layer.own_parameters * arm.world_size + layer.replicated_parameters) * count
        for layer, count in layers
    )


def _collectives(
    layers: Sequence[tuple[LayerCost, int]],
    anew: Sequence[tuple[LayerCost, int]],
    element_bytes: int,
    p: int,
) -> tuple[CollectiveCost, ...]:
    """Of one step; `anew` are the layers whose forward pass is made once more in backward."""
    calls: dict[Collective, int] = {}
    sent: dict[Collective, int] = {}
    made = [(exchange, count) for layer, count in layers for exchange in layer.exchanges]
    made += [(exchange, count) for layer, count in anew for exchange in layer.forward_exchanges]
    for (kind, elements), count in made:
        calls[kind] = calls.get(kind, 0) + count
        sent[kind] = sent.get(kind, 0) + count * bytes_sent(kind, elements, element_bytes, p)
    return tuple(CollectiveCost(kind, calls[kind], sent[kind]) for kind in calls)


def _memory(
    layers: Sequence[tuple[LayerCost, int]],
    model: ModelSpec,
    training: TrainingSpec,
    parameters: int,
    features_bytes: int,
    loss_bytes: tuple[int, int],
    one_pass: bool,
) -> MemoryEstimate:
    element_bytes = bytes_per_number(model.dtype)
    moments = 2 if training.optimizer == "adamw" else int(training.momentum > 0)
    # bfloat16 weights are updated through float32 masters, which have moments of their own.
    rounded = model.dtype == "bfloat16"
    state_bytes = parameters * (4 * (1 + moments) if rounded else element_bytes * moments)
    if rounded and not one_pass:
        state_bytes += 4 * parameters
    elif rounded and training.update == "after":
        # Together at the step's end the small ones are torch's, which wants gradients in the masters' format.
        state_bytes += 4 * sum(
            numbers * count
            for layer, count in layers
            for numbers in layer.weights
            if numbers < LEAST_IN_ONE_PASS
        )
    # GELU's backward needs its input besides the output that the next layer keeps; ReLU's and tanh's needs
    # no more.
    copies = 2 if model.activation == "gelu" else 1
    (first, _), *hidden, _ = layers
    kept = [(layer.saved_elements + copies * layer.output_elements, count) for layer, count in hidden]
    activations = copies * first.output_elements
    recomputed = 0
    if training.activation_checkpointing:
        # A column/row pair's inner layer returns all of z; every layer that ends a pair returns a shard.
        pairs = math.ceil(model.depth / LAYERS_PER_CHECKPOINT)
        activations += pairs * first.output_elements
        # Hidden layers are all alike, or else they alternate.
        alike = kept * LAYERS_PER_CHECKPOINT if len(kept) == 1 and model.depth > 1 else kept
        recomputed = sum(elements for elements, _ in alike[:LAYERS_PER_CHECKPOINT])
    else:
        activations += sum(elements * count for elements, count in kept)
    gradients_bytes = parameters * element_bytes
    outputs_bytes, at_loss_bytes = loss_bytes
    in_backward = max(layer.transient_elements for layer, _ in layers) + recomputed
    return MemoryEstimate(
        weights_bytes=parameters * element_bytes,
        gradients_bytes=gradients_bytes,
        optimizer_bytes=state_bytes,
        activations_bytes=features_bytes + activations * element_bytes + outputs_bytes,
        transient_bytes=max(in_backward * element_bytes, at_loss_bytes - gradients_bytes),
    )


def _loss_bytes(shape: TaskShape, dtype: Dtype, batch: int) -> tuple[int, int]:
    """What `training.losses` holds: all through backward, and beyond that while it makes the loss and its gradient.

    Losses are worked out in float32, or float64 for float64 models; outputs and their gradient have the model's format.
    """
    numbers = batch * shape.outputs
    own, wide = numbers * bytes_per_number(dtype), numbers * (8 if dtype == "float64" else 4)
    if shape.loss == "mean_squared_error":
        return 2 * own + 2 * wide, wide  # targets and differences stay; squares of these go
    # Classes stay. Logarithms of shares and two gradients go, before the one that stays is there.
    return 2 * own + 8 * batch, 3 * wide - own


def data_bytes(rows: int, shape: TaskShape, placement: FeaturePlacement, world_size: int) -> int:
    """Bytes of a rank's copy of the training rows: its features as float32, and the targets.

    Args:
        rows: Training rows.
        shape: Features and outputs of the task.
        placement: Whether the rank sees all features.
        world_size: Ranks that the features are split over.

    Returns:
        Bytes on one rank.
    """
    targets = 8 if shape.loss == "cross_entropy" else 4 * shape.outputs
    return rows * (4 * features_per_rank(shape, placement, world_size) + targets)


def break_even_ghosts(width: int, world_size: int) -> float:
    """From which k on a phantom layer has no fewer weights and FLOPs than a tensor layer: m (1 - 1/p)."""
    return width * (world_size - 1) / world_size**2  # one rounding, so that whole numbers come out whole


def frugal_world_size(width: int, ghosts: int) -> float:
    """At which p a phantom layer's n^2/p + k n p weights over all ranks are fewest: sqrt(n / k)."""
    return math.sqrt(width / ghosts)


def _notes(arm: Arm, model: ModelSpec) -> list[str]:
    if not isinstance(arm, PhantomArm) or arm.world_size == 1:
        return []
    n, p, k = model.width, arm.world_size, arm.ghosts
    notes = []
    limit = break_even_ghosts(n, p)
    if k >= limit:
        notes.append(
            f"ghosts = {k}: from k = {math.ceil(limit)}, m (1 - 1/p), a phantom layer of width {n} on {p} "
            "ranks has no fewer weights and FLOPs than a tensor layer"
        )
    best = frugal_world_size(n, k)
    if p > best:
        notes.append(
            f"world_size = {p}: at width {n} and {k} ghosts all ranks together have the fewest weights and "
            f"FLOPs near p = {max(1, round(best))}, sqrt(n / k); past it ghosts cost more than they save"
        )
    return notes
