"""The segments of a step's layers, in order: what follows the layouts' code. Torch-free.

A collective that a layout hides stands beside the GEMMs that it is hidden behind, one that it waits for stands alone.

Letters: n width, p ranks, m = n / p, k ghosts per rank, r low rank, b batch, F features, O outputs.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from phantom_core.layer_costs import Collective
from phantom_core.spec import (
    Activation,
    Arm,
    BlockDiagonalArm,
    DenseArm,
    LowRankArm,
    PhantomArm,
    TensorArm,
)

Phase = Literal["forward", "backward", "update", "bookkeeping"]
"""Part of a step; bookkeeping is looking up rows and rate, the loss, and keeping it."""


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
    library_copies: int = 0
    """Copies and fills around it where a library's collective carries it instead, on the rank that makes most."""


@dataclass(frozen=True)
class Segment:
    """GEMMs one after another and at most one transfer beside them; the next segment waits for both."""

    phase: Phase
    gemms: tuple[Gemm, ...] = ()
    transfer: Transfer | None = None
    passes_elements: tuple[int, ...] = ()
    """Element-wise kernels: numbers that each reads and writes."""
    copies: int = 0
    """Kernels that only change how something lies; they are launches, and otherwise too small to count."""
    count: int = 1
    """How often in a step."""


@dataclass(frozen=True)
class LayerSegments:
    """Segments of one network's layers."""

    n: int
    p: int
    b: int
    bias: bool
    activation: Activation
    """What follows a layer."""
    by_dtensor: bool
    """Whether collectives are DTensor's: they are waited for at once, and each makes a copy of what it is given."""

    @property
    def m(self) -> int:
        """Neurons of a rank."""
        return self.n // self.p

    def input(self, features: int) -> list[Segment]:
        """Its features need no gradient."""
        b, m = self.b, self.m
        return [
            Segment("forward", (Gemm(b, m, features),), passes_elements=self._activation(m)),
            self._backward(m, None, Gemm(m, features, b)),
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
                return self._gathers(depth)
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

    def _gathers(self, depth: int) -> list[Segment]:
        # What the input layer gives lies row by row; the first layer turns it, to send it feature by feature.
        turned = [Segment("forward", copies=1)] if self.p > 1 and not self.by_dtensor else []
        return [*turned, *self._times(depth, self._gather())]

    def _gather(self) -> list[Segment]:
        b, m, n = self.b, self.m, self.n
        return [
            *self._alone("forward", "all_gather", n * b),
            self._forward(m, Gemm(m, b, n), bias_apart=not self.by_dtensor),
            self._backward(m, None, Gemm(n, b, m)),
            *self._beside("reduce_scatter", n * b, Gemm(m, n, b)),
        ]

    def _row(self) -> list[Segment]:
        b, m, n = self.b, self.m, self.n
        return [
            Segment("forward", (Gemm(b, n, m),), copies=self._divided_bias()),
            *self._alone("forward", "all_reduce", n * b),
            self._forward(n),
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
        # ReLU's gradient lies as its result does, feature by feature; others' lie as what they are given.
        turns = self.p > 1 and not self.by_dtensor and self.activation != "relu"
        turned = [Segment("backward", copies=1)] if turns else []
        return [
            Segment("forward", (Gemm(n, b, m),), copies=self._divided_bias()),
            *self._alone("forward", "reduce_scatter", n * b),
            self._forward(m, bias_apart=not self.by_dtensor),
            *turned,
            *self._alone("backward", "all_gather", n * b),
            self._backward(m, None, Gemm(b, m, n), Gemm(n, m, b)),
        ]

    def _phantom(self, k: int) -> list[Segment]:
        if self.p == 1:
            return self._local()
        b, m, others = self.b, self.m, (self.p - 1) * k
        ghosts = self.p * k * b
        # A library wants each rank's ghosts in its own slot, and that one zero where sums are scattered; ranks between
        # the first and the last move a block for it (`ghost_transport`).
        moved = int(self.p > 2)
        gather = Transfer("all_gather", ghosts, fusable=True, library_copies=moved)
        reduce = Transfer("reduce_scatter", ghosts, fusable=True, library_copies=moved + 1)
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

    def _forward(self, writes: int, *gemms: Gemm, bias_apart: bool = False) -> Segment:
        """GEMMs, then the activation; a bias is added by a GEMM, or apart where features lie first."""
        apart = self.bias and bias_apart and self.p > 1
        bias = (2 * self.b * writes,) if apart else ()
        return Segment("forward", gemms, passes_elements=bias + self._activation(writes))

    def _backward(self, writes: int, transfer: Transfer | None, *gemms: Gemm) -> Segment:
        """The activation's gradient, then GEMMs."""
        return Segment("backward", gemms, transfer, self._activation_gradient(writes) + self._bias(writes))

    def _beside(self, kind: Collective, elements: int, *gemms: Gemm) -> list[Segment]:
        if self.p == 1 or self.by_dtensor:
            return [Segment("backward", gemms), *self._alone("backward", kind, elements)]
        return [Segment("backward", gemms, Transfer(kind, elements, kind == "all_reduce"))]

    def _divided_bias(self) -> int:
        """DTensor adds a replicated bias p times, divided by p before."""
        return int(self.bias and self.by_dtensor and self.p > 1)

    def _alone(
        self, phase: Phase, kind: Collective, elements: int, *, fusable: bool | None = None
    ) -> list[Segment]:
        if self.p == 1:
            return []
        copies = 0
        if fusable is None:  # a hidden layer's: DTensor's collectives are the library's
            fusable, copies = kind == "all_reduce" and not self.by_dtensor, int(self.by_dtensor)
        return [Segment(phase, transfer=Transfer(kind, elements, fusable), copies=copies)]

    def _activation(self, width: int) -> tuple[int, ...]:
        return () if self.activation == "identity" else (2 * self.b * width,)

    def _activation_gradient(self, width: int) -> tuple[int, ...]:
        return () if self.activation == "identity" else (3 * self.b * width,)

    def _bias(self, width: int) -> tuple[int, ...]:
        return (self.b * width,) if self.bias else ()

    @staticmethod
    def _times(count: int, segments: Iterable[Segment]) -> list[Segment]:
        return [replace(each, count=count * each.count) for each in segments]
