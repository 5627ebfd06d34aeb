"""What a meter is: one device's energy and power, with the method beside every number.

MeterError
|-- MeterUnavailable   nothing to read on this machine (no driver, no counter, no permission)
`-- DeviceNotFound     the driver answers, but has no device of that UUID
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, Protocol, Self

from phantom_core.flags import Flag
from phantom_core.protocol import BoardState, DeviceInfo, Method, Scope

PowerMethod = Literal["instant", "average", "estimate"]


class MeterError(Exception):
    """A meter can't do what was asked; the message says what to do about it."""


class MeterUnavailable(MeterError):
    """Nothing of this kind can be read on this machine."""


class DeviceNotFound(MeterError):
    """The driver has no device of that UUID."""


@dataclass(frozen=True)
class Instant:
    """One moment on both clocks."""

    at: datetime
    """UTC, for people."""
    monotonic_s: float
    """The host's monotonic clock, for arithmetic."""

    @classmethod
    def now(cls) -> Self:
        """This moment."""
        return cls(at=datetime.now(UTC), monotonic_s=time.monotonic())

    def midway(self, later: "Instant") -> "Instant":
        """The middle between this moment and a later one: when a slow call most likely read its value."""
        half_s = (later.monotonic_s - self.monotonic_s) / 2
        return Instant(at=self.at + timedelta(seconds=half_s), monotonic_s=self.monotonic_s + half_s)


@dataclass(frozen=True)
class EnergyReading:
    """A device's running energy total at one moment; only differences mean anything."""

    instant: Instant
    """When it was read."""
    energy_mj: float | None
    """Running total in millijoules; None if it can't be read."""
    method: Method | None
    """How; None if it can't be read."""
    scope: Scope | None
    """What it covers."""
    uncertainty_mj: float | None = None
    """How far the total may lag behind the truth at this moment: `lag_s` x the device's largest power;
    None if unknown."""
    reason: str | None = None
    """Why it can't be read, or what the total leaves out."""
    lag_s: float | None = None
    """How old the total may be: the counter's update period and the duration of the call that read it."""
    accumulated_mj: float = 0.0
    """Error bound that has built up in the total since the meter was opened (integrated power, estimates);
    a window's share is the difference of its two ends."""
    epoch: int = 0
    """Counts how often the total may have started over; between epochs there is no difference."""
    flags: tuple[Flag, ...] = ()
    """What must be said beside every energy that comes of this meter."""


@dataclass(frozen=True)
class PowerReading:
    """A device's power at one moment."""

    instant: Instant
    """When it was read."""
    power_mw: float | None
    """Milliwatts; None if it can't be read."""
    method: PowerMethod | None
    """`instant`, `average` or `estimate`; None if it can't be read."""
    utilization_percent: float | None = None
    """GPU utilisation; None if it can't be read."""
    reason: str | None = None
    """Why it can't be read."""


class Meter(Protocol):
    """Reads one device. A context manager: the driver's handle is released on exit."""

    @property
    def device(self) -> DeviceInfo:
        """The device, with the method that its energy is read by."""
        ...

    def read_energy(self) -> EnergyReading:
        """The running total now. Never raises for a device that fails: the reading says why."""
        ...

    def read_power(self) -> PowerReading:
        """The power now. Never raises for a device that fails: the reading says why."""
        ...

    def read_state(self) -> BoardState:
        """Clocks, temperature, limit and company now; what can't be read is None, with a reason."""
        ...

    def close(self) -> None:
        """Releases the driver; safe to call twice."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...


class MeterBase:
    """What all meters share: being a context manager."""

    def close(self) -> None:
        """Releases the driver; safe to call twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
