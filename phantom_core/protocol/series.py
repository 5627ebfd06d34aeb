"""What is told as it comes, many values at a time: metrics, power, states of boards."""

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from phantom_core.protocol.devices import BoardState
from phantom_core.protocol.words import Wire


class MetricPoint(Wire):
    """One value of one metric."""

    step: int
    """Optimizer steps done."""
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
    """What was measured, units in the name."""
    value: float
    """May be NaN or infinite."""
    energy_mj: float | None = None
    """Gross energy of the run's training windows so far, over the arm's boards; None if unknown."""
    training_s: float | None = None
    """Seconds of the run's training windows so far."""


class Metrics(Wire):
    """Values from one run, in order."""

    kind: Literal["metrics"] = "metrics"
    points: tuple[MetricPoint, ...]
    """The values."""


class PowerSamples(Wire):
    """Consecutive power readings of one device; the four lists are equally long."""

    kind: Literal["power_samples"] = "power_samples"
    host: str
    """Host of the device."""
    device_uuid: str
    """The device."""
    method: Literal["instant", "average", "estimate"]
    """Which power: momentary, averaged by the driver, or estimated."""
    at: tuple[AwareDatetime, ...]
    """UTC."""
    monotonic_s: tuple[float, ...]
    """The host's monotonic clock."""
    power_mw: tuple[float | None, ...]
    """Milliwatts; None if a read failed."""
    utilization_percent: tuple[float | None, ...] = ()
    """GPU utilisation at the same instants; empty if not read."""


class BoardStates(Wire):
    """Consecutive states of one device, about one a second."""

    kind: Literal["board_states"] = "board_states"
    host: str
    """Host of the device."""
    device_uuid: str
    """The device."""
    states: tuple[BoardState, ...]
    """In order."""


class SamplerEnded(Wire):
    """The node's sampler stopped."""

    kind: Literal["sampler_ended"] = "sampler_ended"
    host: str
    """Host name."""
    samples: int
    """Readings taken."""
    largest_gap_s: float
    """Longest pause between two readings."""
    reason: str | None = None
    """Why it stopped early; None if it was asked to."""
