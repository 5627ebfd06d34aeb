"""What a device and its links can do, as measured: the ceilings that predictions are made from. Torch-free.

A profile is a JSON file that `benchmarks/calibrate.py` writes. A GEMM's time is

    t = overhead + FLOPs x seconds per FLOP + bytes x seconds per byte

with coefficients >= 0 fitted to measured shapes, whose errors stand beside them; transfers and element-wise kernels are
curves through measured sizes. Powers are means over a load's window, of one device.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from phantom_core.layer_costs import Collective
from phantom_core.spec import ModelSpec, SpecModel, TrainingSpec
from phantom_core.task_shapes import TaskShape

Arithmetic = Literal["float64", "float32", "tf32", "bfloat16"]
"""How GEMMs compute; `tf32` is float32 data with TF32 products."""
Transport = Literal["nccl", "gloo", "fused"]
"""What carries a collective; `fused` is the fused exchange."""
THIN = 512
"""A GEMM with a dimension below this is thin: it keeps few multiprocessors busy, and has a fit of its own."""


class ProfileError(ValueError):
    """A profile lacks what a prediction needs, or is no profile."""


class GemmFit(SpecModel):
    """t = overhead + FLOPs x s/FLOP + bytes x s/byte, for GEMMs of one arithmetic, thin or not."""

    arithmetic: Arithmetic
    """How they compute."""
    thin: bool
    """Whether their smallest dimension is below `THIN`."""
    overhead_s: float
    """Seconds of a GEMM of nothing."""
    s_per_flop: float
    """Seconds per FLOP."""
    s_per_byte: float
    """Seconds per byte of operands and result."""
    shapes: int
    """Measured shapes."""
    median_error: float
    """Median |predicted / measured - 1| over them."""
    worst_error: float
    """Largest."""


class Curve(SpecModel):
    """Seconds by bytes, as measured; straight lines between the points and on beyond the last two."""

    points: tuple[tuple[int, float], ...] = Field(min_length=1)
    """(bytes, seconds), by bytes."""

    def seconds(self, size_bytes: float) -> float:
        """Seconds for so many bytes; below the smallest measured size that size's, which is mostly latency."""
        if size_bytes <= self.points[0][0] or len(self.points) == 1:
            return self.points[0][1]
        above = next(
            (i for i, point in enumerate(self.points) if point[0] >= size_bytes), len(self.points) - 1
        )
        (x0, y0), (x1, y1) = self.points[above - 1], self.points[above]
        return max(0.0, y0 + (y1 - y0) * (size_bytes - x0) / (x1 - x0))

    @property
    def latency_s(self) -> float:
        """Seconds of the smallest measured size."""
        return self.points[0][1]


class LinkCurve(Curve):
    """One collective over so many ranks, by the bytes that one rank sends."""

    kind: Collective
    """Which."""
    transport: Transport
    """What carries it."""
    world_size: int
    """Ranks, p."""


class Powers(SpecModel):
    """Mean power of one device under loads of one kind, in watts."""

    method: str | None
    """How energy was read (`nvml.counter`, `estimate`, ...)."""
    idle_w: float
    """Nothing runs."""
    active_w: float
    """Kernels that do nothing follow each other: clocks are up, units idle."""
    gemm_w: float
    """Large GEMMs."""
    gemm_flops_per_s: float
    """FLOP/s of one device meanwhile, sustained, power limit included."""
    gemm_bytes_per_s: float = 0.0
    """Bytes per second of their operands and results meanwhile; few, since they are large. 0 if it was not kept."""
    memory_w: float
    """Large copies."""
    memory_bytes_per_s: float
    """Bytes per second read and written meanwhile."""
    communication_w: float | None = None
    """Large all-reduces over all ranks; None on one rank."""
    communication_bytes_per_s: float | None = None
    """Bytes per second that one rank sends meanwhile."""
    limit_w: float | None = None
    """The device's power limit; None if unknown."""


class EagerStep(SpecModel):
    """A step of a dense network on one device, without a CUDA graph and so small that the host sets its time."""

    seconds: float
    """Of one step."""
    model: ModelSpec
    """The network."""
    training: TrainingSpec
    """Its recipe, as the code was then."""
    shape: TaskShape
    """Its features and outputs."""
    note: str | None = None
    """How the figure came about, where not by `benchmarks/calibrate.py` as it is."""


class KnownError(SpecModel):
    """How far predictions from this profile were off on measured steps."""

    world_size: int
    """Ranks, p."""
    steps: int
    """Arms and sizes compared."""
    median_time_error: float
    """Median |predicted / measured - 1| of ms per step."""
    worst_time_error: float
    """Largest."""
    median_energy_error: float | None = None
    """Median |predicted / measured - 1| of J per step; None if energy was not measured."""
    worst_energy_error: float | None = None
    """Largest."""
    median_memory_error: float | None = None
    """Median |formula / measured - 1| of peak memory; None if it was not measured."""
    worst_memory_error: float | None = None
    """Largest."""


class Compared(SpecModel):
    """Predictions from this profile beside the steps that one file has for one number of ranks."""

    layers: str
    """The file's name, as `benchmarks/layers.py` wrote it; comparing a file of that name again replaces this."""
    world_size: int
    """Ranks, p."""
    time_errors: tuple[float, ...]
    """Predicted / measured - 1 of ms per step, of each step."""
    energy_errors: tuple[float, ...] = ()
    """Likewise of J per step, where energy was measured."""
    memory_errors: tuple[float, ...] = ()
    """Formula / measured - 1 of peak memory, where it was measured."""


def known_errors(compared: Sequence[Compared]) -> tuple[KnownError, ...]:
    """Errors by number of ranks, over all files together."""

    def median_and_worst(errors: Sequence[float]) -> tuple[float | None, float | None]:
        sizes = [abs(error) for error in errors]
        return (statistics.median(sizes), max(sizes)) if sizes else (None, None)

    found = []
    for p in sorted({each.world_size for each in compared}):
        own = [each for each in compared if each.world_size == p]
        times = [abs(error) for each in own for error in each.time_errors]
        energy = median_and_worst([error for each in own for error in each.energy_errors])
        memory = median_and_worst([error for each in own for error in each.memory_errors])
        found.append(
            KnownError(
                world_size=p,
                steps=len(times),
                median_time_error=statistics.median(times),
                worst_time_error=max(times),
                median_energy_error=energy[0],
                worst_energy_error=energy[1],
                median_memory_error=memory[0],
                worst_memory_error=memory[1],
            )
        )
    return tuple(found)


class DeviceProfile(SpecModel):
    """One kind of host as measured."""

    name: str
    """Shown beside every prediction."""
    card: str
    """The device."""
    cards: int
    """Devices that took part."""
    driver: str | None
    """The driver's version; None on CPUs."""
    torch: str
    """PyTorch's version."""
    date: str
    """When it was measured, UTC."""
    command: str
    """How."""
    in_graph: bool
    """Whether calls were timed inside a CUDA graph."""
    gemms: tuple[GemmFit, ...]
    """By arithmetic and thinness."""
    links: tuple[LinkCurve, ...] = ()
    """By collective, transport and ranks."""
    elementwise: Curve
    """Element-wise kernels, by bytes read and written."""
    update_bytes_per_s: float
    """Rate of the optimizer, over `step_work.update_bytes_per_parameter`."""
    eager_launch_s: float | None = None
    """Seconds of the host per launch, of old profiles that don't tell the step; None where `eager` does."""
    eager: EagerStep | None = None
    """The host's eager step. What that is per launch is up to the formula that counts a prediction's launches."""
    powers: Powers
    """Idle and busy."""
    known_errors: tuple[KnownError, ...] = ()
    """Of earlier predictions; empty if none were compared."""
    compared: tuple[Compared, ...] = ()
    """What they are made of, by file; of old profiles it is not known."""

    @model_validator(mode="after")
    def _knows_the_host(self) -> Self:
        if (self.eager is None) == (self.eager_launch_s is None):
            raise ValueError(
                "a profile has either the eager step that was timed or, of old ones, eager_launch_s"
            )
        return self

    def gemm(self, arithmetic: Arithmetic, smallest: int) -> GemmFit:
        """The fit for GEMMs whose smallest dimension is `smallest`.

        Raises:
            ProfileError: The arithmetic was not measured.
        """
        fits = [fit for fit in self.gemms if fit.arithmetic == arithmetic]
        for fit in fits:
            if fit.thin == (smallest < THIN):
                return fit
        if fits:
            return fits[0]
        measured = sorted({fit.arithmetic for fit in self.gemms})
        raise ProfileError(
            f"profile {self.name!r} has no GEMMs in {arithmetic}, only in {measured}; calibrate with "
            f"--arithmetic {arithmetic}"
        )

    def link(self, kind: Collective, transport: Transport, world_size: int) -> LinkCurve:
        """The curve of a collective.

        Raises:
            ProfileError: It was not measured over so many ranks.
        """
        for fit in self.links:
            if (fit.kind, fit.transport, fit.world_size) == (kind, transport, world_size):
                return fit
        measured = sorted({fit.world_size for fit in self.links if fit.transport == transport})
        raise ProfileError(
            f"profile {self.name!r} has no {kind} by {transport} over {world_size} ranks (measured: {measured}); "
            f"calibrate with {world_size} ranks"
        )

    def compared_with(self, layers: str, found: Sequence[Compared]) -> "DeviceProfile":
        """The profile with what one file's steps say about it, beside what others said.

        Args:
            layers: The file's name; what it said before is replaced.
            found: By number of ranks.
        """
        compared = (*(each for each in self.compared if each.layers != layers), *found)
        told = {each.world_size for each in (*self.compared, *compared)}
        unnamed = [each for each in self.known_errors if each.world_size not in told]
        errors = sorted([*unnamed, *known_errors(compared)], key=lambda error: error.world_size)
        return self.model_copy(update={"compared": compared, "known_errors": tuple(errors)})

    @property
    def transports(self) -> frozenset[Transport]:
        """What carried collectives when it was measured."""
        return frozenset(fit.transport for fit in self.links)


def load_profile(path: Path) -> DeviceProfile:
    """Reads a profile.

    Raises:
        ProfileError: The file is not there or holds none.
    """
    try:
        return DeviceProfile.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ProfileError(
            f"{path} can't be read as a device profile: {error}; make one with "
            "torchrun --nproc-per-node P -m benchmarks.calibrate"
        ) from error
