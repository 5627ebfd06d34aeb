"""What one layer costs one rank for one batch, from formulas alone; `cost.py` adds layers up. Torch-free.

Letters: n width, p ranks, m = n / p, k ghosts per rank, r low rank, b batch. FLOPs are 2 per multiply-add of
the matrix products; nothing else is counted. A weight needs 2 b FLOPs forward, and backward 2 b for its own
gradient and 2 b for its input's.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from phantom_core.spec import (
    Arm,
    BlockDiagonalArm,
    DenseArm,
    FeaturePlacement,
    LowRankArm,
    ModelSpec,
    PhantomArm,
    TensorArm,
)
from phantom_core.task_shapes import TaskShape

Collective = Literal["all_gather", "reduce_scatter", "all_reduce"]
MOST_FUSED_BYTES = 2**20
"""From one rank to another by the fused exchange (`ghost_exchange`); it sums p times that. More is the library's."""
Exchange = tuple[Collective, int]
"""A collective and the elements of the whole tensor: gathered, scattered or reduced."""


def fits_fused(whole_bytes: int, world_size: int) -> bool:
    """Whether the fused exchange carries a message.

    Args:
        whole_bytes: Of the whole tensor: gathered, scattered or reduced.
        world_size: Ranks, p.
    """
    return whole_bytes <= world_size * MOST_FUSED_BYTES


def bytes_sent(kind: Collective, elements: int, element_bytes: int, world_size: int) -> int:
    """Bytes that one rank sends in the ring algorithm of a collective, which no other algorithm undercuts.

    Args:
        kind: Which collective.
        elements: Numbers in the whole tensor: gathered, scattered or reduced.
        element_bytes: Bytes per number.
        world_size: Ranks, p.

    Returns:
        (p-1)/p of the tensor to gather or scatter it, twice that to all-reduce it, in whole numbers
        (upwards).
    """
    passes = 2 if kind == "all_reduce" else 1
    return math.ceil(passes * (world_size - 1) * elements / world_size) * element_bytes


@dataclass(frozen=True)
class LayerCost:
    """One layer on one rank, for one batch."""

    weights: tuple[int, ...]
    """Numbers of each weight matrix and bias that the rank holds, the replicated ones included."""
    own_parameters: int
    """Weights and biases that no other rank has."""
    replicated_parameters: int
    """Biases that every rank holds alike."""
    forward_flops: int
    """Of the matrix products."""
    backward_flops: int
    """Of the matrix products."""
    forward_exchanges: tuple[Exchange, ...]
    """Its collectives in a forward pass."""
    backward_exchanges: tuple[Exchange, ...]
    """Its collectives in a backward pass."""
    saved_elements: int
    """Numbers kept for backward beyond the layer's input."""
    output_elements: int
    """Numbers that it returns."""
    transient_elements: int
    """Numbers alive only while its backward runs: gradients of output, input and weights, exchange buffers."""

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Its collectives, forward and backward."""
        return self.forward_exchanges + self.backward_exchanges


def layer_costs(
    arm: Arm, model: ModelSpec, shape: TaskShape, placement: FeaturePlacement, batch: int
) -> list[tuple[LayerCost, int]]:
    """Each different layer of an arm's network, and how many of it there are: input, hidden ones, output.

    Args:
        arm: Strategy and ranks; they must divide the width (and split features).
        model: Width, depth and bias.
        shape: Features and outputs of the task.
        placement: Whether ranks see all features or a part each.
        batch: Rows per step.
    """
    layers = _Layers(n=model.width, p=arm.world_size, b=batch, bias=model.bias)
    hidden: list[tuple[LayerCost, int]]
    match arm:
        case TensorArm(form="gather"):
            hidden = [(layers.gather(), model.depth)]
        case TensorArm():
            pairs, rest = divmod(model.depth, 2)
            by_dtensor = arm.implementation == "dtensor"
            hidden = [
                (layers.row(by_dtensor), pairs),
                (layers.column(by_dtensor), pairs),
            ]
            if rest:
                hidden.append((layers.row_scatter(by_dtensor), rest))
        case PhantomArm():
            hidden = [(layers.phantom(arm.ghosts), model.depth)]
        case LowRankArm():
            hidden = [(layers.low_rank(arm.rank), model.depth)]
        case DenseArm() | BlockDiagonalArm():
            hidden = [(layers.local(), model.depth)]
    first = layers.input(features_per_rank(shape, placement, arm.world_size))
    return [
        (first, 1),
        *((layer, count) for layer, count in hidden if count),
        (layers.output(shape.outputs), 1),
    ]


def features_per_rank(shape: TaskShape, placement: FeaturePlacement, world_size: int) -> int:
    """Features that one rank is given."""
    return shape.features // world_size if placement == "split" else shape.features


@dataclass(frozen=True)
class _Layers:
    """The layers of one network, by layout."""

    n: int
    p: int
    b: int
    bias: bool

    @property
    def m(self) -> int:
        return self.n // self.p

    def input(self, features: int) -> LayerCost:
        """Features to shard; features need no gradient, so half of the usual backward."""
        return self._layer((features * self.m,), reads=0, writes=self.m, input_gradient=False)

    def output(self, outputs: int) -> LayerCost:
        """Shard to full outputs by an all-reduce."""
        sums: Exchange = ("all_reduce", outputs * self.b)
        cost = self._layer((self.m * outputs,), reads=self.m, writes=outputs, full=True, forward=(sums,))
        # The gradient of the outputs is the loss's, and no activation follows.
        return replace(cost, transient_elements=cost.transient_elements - 2 * cost.output_elements)

    def local(self) -> LayerCost:
        """An m x m block on each rank, nothing sent: block-diagonal, and dense where p = 1."""
        return self._layer((self.m * self.m,), reads=self.m, writes=self.m)

    def phantom(self, k: int) -> LayerCost:
        """All-gather of ghosts forward, reduce-scatter of their gradients backward."""
        if self.p == 1:
            return self.local()
        weights = (self.m * self.m, k * self.m, (self.p - 1) * k * self.m)
        ghosts = self.p * k * self.b
        gather: Exchange = ("all_gather", ghosts)
        scatter: Exchange = ("reduce_scatter", ghosts)
        buffers = ghosts + k * self.b
        return self._layer(
            weights, self.m, self.m, forward=(gather,), backward=(scatter,), saved=ghosts, buffers=buffers
        )

    def gather(self) -> LayerCost:
        """All-gather of x forward, which backward needs again; reduce-scatter of dx."""
        whole = self.n * self.b
        gather: Exchange = ("all_gather", whole)
        scatter: Exchange = ("reduce_scatter", whole)
        kept = whole if self.p > 1 else 0
        return self._layer(
            (self.n * self.m,),
            self.m,
            self.m,
            forward=(gather,),
            backward=(scatter,),
            saved=kept,
            buffers=kept,
        )

    def row(self, by_dtensor: bool = False) -> LayerCost:
        """Shard to full by an all-reduce forward; its bias is replicated."""
        sums: Exchange = ("all_reduce", self.n * self.b)
        buffers = self._copies(by_dtensor)
        return self._layer((self.n * self.m,), self.m, self.n, full=True, forward=(sums,), buffers=buffers)

    def column(self, by_dtensor: bool = False) -> LayerCost:
        """Full to shard; backward all-reduces dx."""
        sums: Exchange = ("all_reduce", self.n * self.b)
        return self._layer(
            (self.n * self.m,), self.n, self.m, backward=(sums,), buffers=self._copies(by_dtensor)
        )

    def row_scatter(self, by_dtensor: bool = False) -> LayerCost:
        """Shard to shard by a reduce-scatter forward; backward all-gathers the gradient of z.

        With DTensor every rank holds the whole bias instead of its own part.
        """
        whole = self.n * self.b
        scatter: Exchange = ("reduce_scatter", whole)
        gather: Exchange = ("all_gather", whole)
        buffers = self._copies(by_dtensor) or (whole if self.p > 1 else 0)
        cost = self._layer(
            (self.n * self.m,), self.m, self.m, forward=(scatter,), backward=(gather,), buffers=buffers
        )
        if not (by_dtensor and self.bias and self.p > 1):
            return cost
        own = cost.own_parameters - self.m
        held = (self.n * self.m, self.n)
        return replace(cost, weights=held, own_parameters=own, replicated_parameters=self.n)

    def _copies(self, by_dtensor: bool) -> int:
        """Numbers in the copies that DTensor's collectives make: they return new tensors, and keep the old."""
        return 3 * self.n * self.b if by_dtensor and self.p > 1 else 0

    def low_rank(self, r: int) -> LayerCost:
        """An all-reduce of the r inner values in each direction."""
        inner = r * self.b
        sums: Exchange = ("all_reduce", inner)
        return self._layer(
            (r * self.m, self.m * r),
            self.m,
            self.m,
            forward=(sums,),
            backward=(sums,),
            saved=inner,
            buffers=inner,
        )

    def _layer(
        self,
        matrices: tuple[int, ...],
        reads: int,
        writes: int,
        *,
        full: bool = False,
        input_gradient: bool = True,
        forward: tuple[Exchange, ...] = (),
        backward: tuple[Exchange, ...] = (),
        saved: int = 0,
        buffers: int = 0,
    ) -> LayerCost:
        """A layer that reads and writes so many numbers per row; `full` if its output is on every rank."""
        weights = sum(matrices)
        biases = writes if self.bias else 0
        replicated = biases if full and self.p > 1 else 0
        return LayerCost(
            weights=(*matrices, biases) if biases else matrices,
            own_parameters=weights + biases - replicated,
            replicated_parameters=replicated,
            forward_flops=2 * self.b * weights,
            backward_flops=(4 if input_gradient else 2) * self.b * weights,
            forward_exchanges=forward if self.p > 1 else (),
            backward_exchanges=backward if self.p > 1 else (),
            saved_elements=saved,
            output_elements=writes * self.b,
            # Of the output two gradients, before and after the activation; of the weights the new one,
            # before it is added to the old.
            transient_elements=(reads + 2 * writes) * self.b + weights + buffers,
        )
