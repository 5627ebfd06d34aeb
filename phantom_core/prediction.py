"""Time and energy of a planned arm's step, estimated from formulas and a device profile. Torch-free.

    segment   = max(sum of its GEMMs, its transfer) + sum of its passes
    device    = sum over segments + bookkeeping + update
    launched  = launches x eager launch without a CUDA graph, 0 in one
    dynamic J = FLOPs x j_flop + memory bytes x j_byte + sent bytes x j_sent
    capped    = dynamic J / (limit W - active W)
    step      = max(device, launched, capped)
    step J    = p (step x active W + dynamic J)

A transfer stands beside the GEMMs that hide it; passes hide nothing.
j_byte = (copy W - active W) / (bytes/s meanwhile), j_sent likewise, j_flop = (GEMM W - active W - operand bytes/s
x j_byte) / (FLOP/s meanwhile), and memory bytes those of GEMMs' operands, passes and the update. `floor` is what no
order of the same work could undercut: the largest of FLOPs / rate, least memory bytes / rate and bytes sent / rate.
docs/mathematics.md has the derivation. For a world size that a profile has not measured there is no answer: how
collectives grow from four ranks to 65,536 is nothing that four could tell.
"""

from dataclasses import dataclass
from typing import Literal

from phantom_core.layer_costs import bytes_sent, fits_fused
from phantom_core.layer_segments import Gemm, Segment, Transfer
from phantom_core.plan import PlannedArm
from phantom_core.profile import DeviceProfile, KnownError, Transport
from phantom_core.spec import DenseArm, FeaturePlacement
from phantom_core.step_work import BOOKKEEPING_IN_LINE, StepWork, step_work
from phantom_core.task_shapes import TaskShape

Mode = Literal["graph", "eager"]
"""How steps are started."""


@dataclass(frozen=True)
class Ceilings:
    """What no kernel exceeds, measured: rates of one device and of its links."""

    gemm_flops_per_s: float
    """Of large GEMMs."""
    memory_bytes_per_s: float
    """Read and written."""
    link_bytes_per_s: float | None
    """Sent by one rank in large all-reduces; None where nothing is sent."""

    @classmethod
    def of(cls, profile: DeviceProfile) -> "Ceilings":
        """Those of the loads that powers were measured under; of memory the optimizer's, where that is faster.

        A plain copy is no ceiling: on Hoppers it moves two thirds of what a kernel that reads and writes does.
        """
        powers = profile.powers
        memory_bytes_per_s = max(powers.memory_bytes_per_s, profile.update_bytes_per_s)
        return cls(powers.gemm_flops_per_s, memory_bytes_per_s, powers.communication_bytes_per_s)


@dataclass(frozen=True)
class Floor:
    """Seconds that each resource needs for a step on its own."""

    gemm_s: float
    """FLOPs / rate."""
    memory_s: float
    """Least bytes to and from memory / rate."""
    link_s: float
    """Bytes sent / rate; 0 where nothing is sent."""

    @property
    def step_s(self) -> float:
        """The largest: no step is shorter, whatever overlaps."""
        return max(self.gemm_s, self.memory_s, self.link_s)

    @property
    def bound(self) -> Literal["gemm", "memory", "link"]:
        """Which it is."""
        if self.gemm_s == self.step_s:
            return "gemm"
        return "memory" if self.memory_s == self.step_s else "link"


@dataclass(frozen=True)
class Prediction:
    """An estimate, never a measurement; shown with its profile and the error known so far."""

    step_s: float
    """Seconds per step."""
    energy_j: float
    """Joules per step, all of the arm's devices together."""
    gemm_s: float
    """Of them in GEMMs."""
    elementwise_s: float
    """In element-wise kernels and bookkeeping."""
    update_s: float
    """In the optimizer."""
    exposed_s: float
    """In transfers that nothing hides."""
    waiting_s: float
    """Waiting for the host to launch, or slowed down by the power limit: the step beyond the device's work."""
    limit: Literal["device", "host", "power"]
    """What sets the step's length."""
    launches: int
    """Kernels and collectives started per step."""
    floor: Floor
    """Its rooflines, from the profile's rates."""
    profile: str
    """The profile's name."""
    known_error: KnownError | None
    """Of earlier predictions for so many ranks; None if none were compared."""

    @property
    def label(self) -> str:
        """To be shown beside every figure of it."""
        source = f"estimate from profile {self.profile}"
        if self.known_error is None:
            return f"{source}; not yet compared with measured steps"
        error = self.known_error
        energy = "" if error.median_energy_error is None else f", J {100 * error.median_energy_error:.0f} %"
        return (
            f"{source}; off so far by (median of {error.steps} steps on {error.world_size} ranks): "
            f"ms {100 * error.median_time_error:.0f} %{energy}"
        )


def predict(
    planned: PlannedArm,
    shape: TaskShape,
    placement: FeaturePlacement,
    profile: DeviceProfile,
    *,
    mode: Mode = "graph",
    small_transport: Transport | None = None,
) -> Prediction:
    """Estimates a planned arm's step.

    Args:
        planned: The arm with its model and recipe; shapes must divide.
        shape: Features and outputs of the task.
        placement: Whether ranks see all features or a part each.
        profile: The device and its links.
        mode: Whether steps run in a CUDA graph.
        small_transport: What carries small messages; None takes the fused exchange if the profile has it.

    Returns:
        The estimate.

    Raises:
        ProfileError: The profile lacks an arithmetic, or collectives over so many ranks.
    """
    # On CPUs, which have no driver, there are no one-pass kernels.
    work = step_work(planned, shape, placement, one_pass=profile.driver is not None)
    return Predictor(profile, mode, small_transport).step(work)


class Predictor:
    """Times and energies of work on one profile.

    Args:
        profile: The device and its links.
        mode: Whether steps run in a CUDA graph.
        small_transport: What carries small messages; None takes the fused exchange if the profile has it.
    """

    def __init__(
        self,
        profile: DeviceProfile,
        mode: Mode = "graph",
        small_transport: Transport | None = None,
    ) -> None:
        self._profile = profile
        self._mode: Mode = mode
        library: Transport = "nccl" if "nccl" in profile.transports else "gloo"
        fused: Transport = "fused" if "fused" in profile.transports else library
        self._library = library
        self._small: Transport = small_transport or fused
        self._measured = {(each.kind, each.transport, each.world_size) for each in profile.links}

    def step(self, work: StepWork) -> Prediction:
        """Estimates one step."""
        profile, element_bytes, p = self._profile, work.element_bytes, work.world_size
        gemm_s = exposed_s = elementwise_s = sent = passed = operands = 0.0
        for segment in work.segments:
            busy_s = sum(self.gemm_s(gemm, work) for gemm in segment.gemms)
            passes_s = sum(self._pass_s(elements * element_bytes) for elements in segment.passes_elements)
            transfer_s = self._transfer_s(segment, work)
            gemm_s += segment.count * busy_s
            elementwise_s += segment.count * passes_s
            exposed_s += segment.count * max(0.0, transfer_s - busy_s)
            operands += segment.count * element_bytes * sum(gemm.elements for gemm in segment.gemms)
            passed += segment.count * element_bytes * sum(segment.passes_elements)
            sent += segment.count * _sent(segment.transfer, work)
        elementwise_s += BOOKKEEPING_IN_LINE * profile.elementwise.latency_s
        update_s = work.update_bytes / profile.update_bytes_per_s
        device_s = gemm_s + elementwise_s + exposed_s + update_s
        launches = work.launches(fused=self._small == "fused")
        launched_s = launches * eager_launch_s(profile) if self._mode == "eager" else 0.0
        powers = profile.powers
        byte_j = _above(powers.memory_w, powers.active_w, powers.memory_bytes_per_s)
        # The narrower a GEMM, the more of its energy goes into fetching operands.
        operands_w = powers.gemm_bytes_per_s * byte_j
        flop_j = _above(powers.gemm_w, powers.active_w + operands_w, powers.gemm_flops_per_s)
        dynamic_j = work.flops * flop_j + (operands + passed + work.update_bytes) * byte_j
        if powers.communication_w is not None and powers.communication_bytes_per_s:
            dynamic_j += sent * _above(
                powers.communication_w, powers.active_w, powers.communication_bytes_per_s
            )
        capped_s = 0.0
        if powers.limit_w is not None and powers.limit_w > powers.active_w:
            capped_s = dynamic_j / (powers.limit_w - powers.active_w)
        step_s = max(device_s, launched_s, capped_s)
        limits: dict[float, Literal["device", "host", "power"]] = {
            capped_s: "power",
            launched_s: "host",
            device_s: "device",
        }
        return Prediction(
            step_s=step_s,
            energy_j=p * (step_s * powers.active_w + dynamic_j),
            gemm_s=gemm_s,
            elementwise_s=elementwise_s,
            update_s=update_s,
            exposed_s=exposed_s,
            waiting_s=step_s - device_s,
            limit=limits[step_s],
            launches=launches,
            floor=floor(work, Ceilings.of(profile)),
            profile=profile.name,
            known_error=next((each for each in profile.known_errors if each.world_size == p), None),
        )

    def gemm_s(self, gemm: Gemm, work: StepWork) -> float:
        """Seconds of one GEMM."""
        fit = self._profile.gemm(work.arithmetic, min(gemm.rows, gemm.columns, gemm.inner))
        return (
            fit.overhead_s + gemm.flops * fit.s_per_flop + gemm.elements * work.element_bytes * fit.s_per_byte
        )

    def _pass_s(self, size_bytes: int) -> float:
        return self._profile.elementwise.seconds(size_bytes)

    def _transfer_s(self, segment: Segment, work: StepWork) -> float:
        transfer = segment.transfer
        if transfer is None:
            return 0.0
        curve = self._profile.link(transfer.kind, self._transport(transfer, work), work.world_size)
        return curve.seconds(_sent(transfer, work))

    def _transport(self, transfer: Transfer, work: StepWork) -> Transport:
        known = (transfer.kind, self._small, work.world_size) in self._measured
        fits = transfer.fusable and fits_fused(transfer.elements * work.element_bytes, work.world_size)
        return self._small if fits and known else self._library


def eager_launch_s(profile: DeviceProfile) -> float:
    """Seconds of the host per launch: the eager step that the profile has, over its launches by the same formula."""
    eager = profile.eager
    if eager is None:
        assert profile.eager_launch_s is not None, "a profile is checked to have one of both"
        return profile.eager_launch_s
    planned = PlannedArm(arm=DenseArm(name="eager"), model=eager.model, training=eager.training)
    work = step_work(planned, eager.shape, "whole", one_pass=profile.driver is not None)
    return eager.seconds / work.launches()


def floor(work: StepWork, ceilings: Ceilings) -> Floor:
    """The rooflines of a step's work under measured ceilings."""
    sent = sum(_sent(transfer, work) for transfer in work.transfers)
    rate = ceilings.link_bytes_per_s
    return Floor(
        gemm_s=work.flops / ceilings.gemm_flops_per_s,
        memory_s=work.least_memory_bytes / ceilings.memory_bytes_per_s,
        link_s=sent / rate if rate else 0.0,
    )


def _sent(transfer: Transfer | None, work: StepWork) -> int:
    if transfer is None:
        return 0
    return bytes_sent(transfer.kind, transfer.elements, work.element_bytes, work.world_size)


def _above(power_w: float, active_w: float, rate: float) -> float:
    """Joules per unit of work beyond what a device draws anyway."""
    return max(0.0, power_w - active_w) / rate
