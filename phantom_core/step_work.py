"""What one training step does on one rank, in order: GEMMs, what is sent beside them, element-wise passes.

Torch-free. The segments follow the layouts' code: a collective that a layout hides stands beside the GEMMs that it is
hidden behind, one that it waits for stands alone. Tests hold their FLOPs and bytes to `cost.py`, which counts the
same step without an order.

Letters: n width, p ranks, m = n / p, k ghosts per rank, r low rank, b batch, F features, O outputs.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from phantom_core.layer_costs import Collective, features_per_rank
from phantom_core.profile import Arithmetic
from phantom_core.spec import (
    Arm,
    BlockDiagonalArm,
    DenseArm,
    Dtype,
    FeaturePlacement,
    LowRankArm,
    PhantomArm,
    TensorArm,
    TrainingSpec,
)
from phantom_core.task_shapes import TaskShape

if TYPE_CHECKING:
    from phantom_core.plan import PlannedArm

Phase = Literal["forward", "backward", "update", "bookkeeping"]
"""Part of a step; bookkeeping is looking up rows and rate, the loss, and keeping it."""

BOOKKEEPING_LAUNCHES = 10
"""Small kernels of a step besides the layers': rows, rate, targets, loss and its gradient, position."""
BOOKKEEPING_IN_LINE = 4
"""Those of them that the network waits for: rows, features, the difference, its gradient."""
UPDATE_LAUNCHES = 3
"""Kernels of an update whose weights are few and small; large ones take more, which overlap."""


@dataclass(frozen=True)
class Gemm:
    """A matrix product (rows, inner) x (inner, columns)."""

    rows: int
    columns: int
    inner: int
    accumulates: bool = False
    """Whether the result is added to what is there, which is read first."""

    @property
    def flops(self) -> int:
        """2 per multiply-add."""
        return 2 * self.rows * self.columns * self.inner

    @property
    def elements(self) -> int:
        """Numbers read and written, each once."""
        written = self.rows * self.columns
        return (self.rows + self.columns) * self.inner + written * (2 if self.accumulates else 1)


@dataclass(frozen=True)
class Transfer:
    """A collective over the arm's ranks."""

    kind: Collective
    elements: int
    """Numbers of the whole tensor: gathered, not yet scattered, or reduced."""
    fusable: bool = False
    """Whether the fused exchange carries it where that was set up and the message is small enough."""


@dataclass(frozen=True)
class Segment:
    """GEMMs one after another and at most one transfer beside them; the next segment waits for both."""

    phase: Phase
    gemms: tuple[Gemm, ...] = ()
    transfer: Transfer | None = None
    passes_elements: tuple[int, ...] = ()
    """Element-wise kernels: numbers that each reads and writes."""
    count: int = 1
    """How often in a step."""


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

    @property
    def launches(self) -> int:
        """Kernels and collectives that are started, the optimizer's for few weights."""
        layers = sum(
            (len(each.gemms) + len(each.passes_elements) + (each.transfer is not None)) * each.count
            for each in self.segments
        )
        return layers + BOOKKEEPING_LAUNCHES + UPDATE_LAUNCHES


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


def step_work(planned: "PlannedArm", shape: TaskShape, placement: FeaturePlacement) -> StepWork:
    """What a step of a planned arm does on one rank.

    Args:
        planned: The arm with its model and recipe; shapes must divide.
        shape: Features and outputs of the task.
        placement: Whether ranks see all features or a part each.

    Returns:
        Its work.
    """
    from phantom_core.cost import arm_cost, bytes_per_number

    arm, model, training = planned.arm, planned.model, planned.training
    layers = _Layers(
        model.width,
        arm.world_size,
        training.batch_size,
        model.bias,
        linear=model.activation == "identity",
        hides=not (isinstance(arm, TensorArm) and arm.implementation == "dtensor"),
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
    return StepWork(
        segments=tuple(segment for segment in segments if segment.count),
        element_bytes=bytes_per_number(model.dtype),
        arithmetic="tf32" if model.tf32 and model.dtype == "float32" else model.dtype,
        parameters=parameters,
        update_bytes=parameters * update_bytes_per_parameter(training, model.dtype),
        world_size=arm.world_size,
    )


@dataclass(frozen=True)
class _Layers:
    """Segments of one network's layers."""

    n: int
    p: int
    b: int
    bias: bool
    linear: bool
    """Whether there is no activation."""
    hides: bool
    """Whether a layout starts collectives before work that doesn't need them; DTensor's waits at once."""

    @property
    def m(self) -> int:
        return self.n // self.p

    def input(self, features: int) -> list[Segment]:
        """Its features need no gradient."""
        b, m = self.b, self.m
        return [
            Segment("forward", (Gemm(b, m, features),), passes_elements=self._activation(m)),
            Segment("backward", (Gemm(m, features, b),), passes_elements=self._activation_gradient(m)),
        ]

    def output(self, outputs: int) -> list[Segment]:
        """Its sum is waited for."""
        b, m = self.b, self.m
        return [
            Segment("forward", (Gemm(b, outputs, m),)),
            *self._alone("forward", "all_reduce", outputs * b, fusable=True),
            Segment(
                "backward", (Gemm(b, m, outputs), Gemm(outputs, m, b)), passes_elements=self._bias(outputs)
            ),
        ]

    def hidden(self, arm: Arm, depth: int) -> list[Segment]:
        """All hidden layers."""
        match arm:
            case TensorArm(form="gather"):
                return self._times(depth, self._gather())
            case TensorArm():
                pairs, rest = divmod(depth, 2)
                pair = [*self._row(), *self._column()]
                return self._times(pairs, pair) + self._times(rest, self._row_scatter())
            case PhantomArm():
                return self._times(depth, self._phantom(arm.ghosts))
            case LowRankArm():
                return self._times(depth, self._low_rank(arm.rank))
            case DenseArm() | BlockDiagonalArm():
                return self._times(depth, self._local())

    def _local(self) -> list[Segment]:
        b, m = self.b, self.m
        return [self._forward(m, Gemm(b, m, m)), self._backward(m, None, Gemm(b, m, m), Gemm(m, m, b))]

    def _gather(self) -> list[Segment]:
        b, m, n = self.b, self.m, self.n
        return [
            *self._alone("forward", "all_gather", n * b),
            self._forward(m, Gemm(m, b, n)),
            self._backward(m, None, Gemm(n, b, m)),
            *self._beside("reduce_scatter", n * b, Gemm(m, n, b)),
        ]

    def _row(self) -> list[Segment]:
        b, m, n = self.b, self.m, self.n
        return [
            Segment("forward", (Gemm(b, n, m),)),
            *self._alone("forward", "all_reduce", n * b),
            Segment("forward", passes_elements=self._activation(n)),
            self._backward(n, None, Gemm(b, m, n), Gemm(n, m, b)),
        ]

    def _column(self) -> list[Segment]:
        b, m, n = self.b, self.m, self.n
        return [
            self._forward(m, Gemm(b, m, n)),
            self._backward(m, None, Gemm(b, n, m)),
            *self._beside("all_reduce", n * b, Gemm(m, n, b)),
        ]

    def _row_scatter(self) -> list[Segment]:
        b, m, n = self.b, self.m, self.n
        return [
            Segment("forward", (Gemm(n, b, m),)),
            *self._alone("forward", "reduce_scatter", n * b),
            Segment("forward", passes_elements=self._activation(m)),
            *self._alone("backward", "all_gather", n * b),
            self._backward(m, None, Gemm(b, m, n), Gemm(n, m, b)),
        ]

    def _phantom(self, k: int) -> list[Segment]:
        if self.p == 1:
            return self._local()
        b, m, others = self.b, self.m, (self.p - 1) * k
        ghosts = self.p * k * b
        gather = Transfer("all_gather", ghosts, fusable=True)
        reduce = Transfer("reduce_scatter", ghosts, fusable=True)
        return [
            Segment("forward", (Gemm(k, b, m),)),
            Segment("forward", (Gemm(b, m, m),), gather),
            self._forward(m, Gemm(b, m, others, accumulates=True)),
            self._backward(m, None, Gemm(others, b, m)),
            Segment("backward", (Gemm(b, m, m), Gemm(m, m, b), Gemm(m, others, b)), reduce),
            Segment("backward", (Gemm(b, m, k, accumulates=True), Gemm(k, m, b))),
        ]

    def _low_rank(self, r: int) -> list[Segment]:
        b, m = self.b, self.m
        return [
            Segment("forward", (Gemm(b, r, m),)),
            *self._alone("forward", "all_reduce", r * b),
            self._forward(m, Gemm(b, m, r)),
            self._backward(m, None, Gemm(b, r, m)),
            *self._beside("all_reduce", r * b, Gemm(m, r, b)),
            Segment("backward", (Gemm(b, m, r), Gemm(r, m, b))),
        ]

    def _forward(self, writes: int, *gemms: Gemm) -> Segment:
        """GEMMs, then the activation."""
        return Segment("forward", gemms, passes_elements=self._activation(writes))

    def _backward(self, writes: int, transfer: Transfer | None, *gemms: Gemm) -> Segment:
        """The activation's gradient, then GEMMs."""
        return Segment("backward", gemms, transfer, self._activation_gradient(writes) + self._bias(writes))

    def _beside(self, kind: Collective, elements: int, *gemms: Gemm) -> list[Segment]:
        if self.p == 1 or not self.hides:
            return [Segment("backward", gemms), *self._alone("backward", kind, elements)]
        return [Segment("backward", gemms, Transfer(kind, elements, kind == "all_reduce"))]

    def _alone(
        self, phase: Phase, kind: Collective, elements: int, *, fusable: bool | None = None
    ) -> list[Segment]:
        if self.p == 1:
            return []
        if fusable is None:  # DTensor's collectives are the library's
            fusable = kind == "all_reduce" and self.hides
        return [Segment(phase, transfer=Transfer(kind, elements, fusable))]

    def _activation(self, width: int) -> tuple[int, ...]:
        return () if self.linear else (2 * self.b * width,)

    def _activation_gradient(self, width: int) -> tuple[int, ...]:
        return () if self.linear else (3 * self.b * width,)

    def _bias(self, width: int) -> tuple[int, ...]:
        return (self.b * width,) if self.bias else ()

    @staticmethod
    def _times(count: int, segments: Iterable[Segment]) -> list[Segment]:
        return [
            Segment(each.phase, each.gemms, each.transfer, each.passes_elements, count * each.count)
            for each in segments
        ]
