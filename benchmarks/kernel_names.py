"""Which part of a step a kernel belongs to, by its name, and how much of a timeline each part takes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Part = Literal["communication", "optimizer", "gemm", "elementwise", "other"]

_NAMES: tuple[tuple[Part, tuple[str, ...]], ...] = (
    (
        "communication",
        (
            "nccldevkernel",
            "ncclkernel",
            "ncclsymk",
            "gather_ghosts",
            "reduce_ghosts",
            "sum_everywhere",
            "sum_by_shards",
            "symm_mem",
            "one_shot_all",
        ),
    ),
    ("optimizer", ("multi_tensor_apply", "fusedsgd", "fusedadam", "sgd", "adamw")),
    (
        "gemm",
        (
            "nvjet",
            "gemm",
            "cutlass",
            "xmma",
            "splitkreduce",
            "gemv",
            "cublaslt",
            "cublas",
            "triton_tem_",
            "triton_mm",
        ),
    ),
    (
        "elementwise",
        (
            "elementwise",
            "reduce_kernel",
            "index",
            "memcpy",
            "memset",
            "catarray",
            "triton_poi",
            "triton_per",
            "triton_red",
            "copy",
            "fill",
            "threshold",
            "scatter_gather",
            "mse_",
        ),
    ),
)
"""Looked for in this order in a lower-case name."""


def part_of(name: str) -> Part:
    """The part that a kernel's name tells of."""
    lower = name.lower()
    for part, fragments in _NAMES:
        if any(fragment in lower for fragment in fragments):
            return part
    return "other"


@dataclass(frozen=True)
class Kernel:
    """One kernel, copy or fill on the device."""

    name: str
    """As the profiler names it."""
    start_us: float
    """When it began."""
    duration_us: float
    """How long it took."""


@dataclass(frozen=True)
class Split:
    """Milliseconds of a timeline, each instant counted once."""

    gemm_ms: float
    """A GEMM runs, whatever runs beside it."""
    optimizer_ms: float
    """Else the optimizer runs."""
    elementwise_ms: float
    """Else something element-wise, a copy or an unknown kernel runs."""
    exposed_communication_ms: float
    """Communication runs and nothing else."""
    gaps_ms: float
    """Nothing runs."""
    communication_ms: float
    """Communication runs, hidden or not; overlaps the others."""
    kernels: int
    """Kernels, copies and fills."""
    unknown: tuple[str, ...]
    """Names that no part was found for."""

    @property
    def total_ms(self) -> float:
        """From the first kernel's start to the last one's end."""
        return (
            self.gemm_ms
            + self.optimizer_ms
            + self.elementwise_ms
            + self.exposed_communication_ms
            + self.gaps_ms
        )


def split(kernels: Sequence[Kernel]) -> Split:
    """Splits a timeline by what runs at each instant: GEMM before optimizer before the rest before communication.

    Args:
        kernels: In any order; may overlap.
    """
    parts = [part_of(kernel.name) for kernel in kernels]
    edges = sorted(
        edge
        for kernel, part in zip(kernels, parts, strict=True)
        for edge in (
            (kernel.start_us, 1, part),
            (kernel.start_us + kernel.duration_us, -1, part),
        )
    )
    running: dict[Part, int] = {}
    taken_us: dict[str, float] = {}
    before_us = edges[0][0] if edges else 0.0
    for at_us, change, part in edges:
        passed_us = at_us - before_us
        taken_us[_foremost(running)] = taken_us.get(_foremost(running), 0.0) + passed_us
        if running.get("communication"):
            taken_us["any communication"] = taken_us.get("any communication", 0.0) + passed_us
        running[part] = running.get(part, 0) + change
        before_us = at_us
    unknown = (kernel.name for kernel, part in zip(kernels, parts, strict=True) if part == "other")
    return Split(
        gemm_ms=taken_us.get("gemm", 0.0) / 1_000,
        optimizer_ms=taken_us.get("optimizer", 0.0) / 1_000,
        elementwise_ms=(taken_us.get("elementwise", 0.0) + taken_us.get("other", 0.0)) / 1_000,
        exposed_communication_ms=taken_us.get("communication", 0.0) / 1_000,
        gaps_ms=taken_us.get("gap", 0.0) / 1_000,
        communication_ms=taken_us.get("any communication", 0.0) / 1_000,
        kernels=len(kernels),
        unknown=tuple(dict.fromkeys(unknown)),
    )


def _foremost(running: dict[Part, int]) -> str:
    order: Iterable[Part] = ("gemm", "optimizer", "elementwise", "other", "communication")
    return next((part for part in order if running.get(part)), "gap")
