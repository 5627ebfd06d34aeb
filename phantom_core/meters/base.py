"""What a meter is: one device's energy and power, with the method beside every number.

MeterError
|-- MeterUnavailable   nothing to read on this machine (no driver, no counter, no permission)
`-- DeviceNotFound     the driver answers, but has no device of that UUID
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, Self

from phantom_core.protocol import DeviceInfo, Method, Scope


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
    """How far the total may lag behind the truth at this moment; None if unknown."""
    reason: str | None = None
    """Why it can't be read."""


@dataclass(frozen=True)
class PowerReading:
    """A device's power at one moment."""

    instant: Instant
    """When it was read."""
    power_mw: float | None
    """Milliwatts; None if it can't be read."""
    method: str | None
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

    def close(self) -> None:
        """Releases the driver; safe to call twice."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...
