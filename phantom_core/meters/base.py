"""What a meter is: one device's energy and power, with the method beside every number.

MeterError
|-- MeterUnavailable   nothing to read on this machine (no driver, no counter, no permission)
`-- DeviceNotFound     the driver answers, but has no device of that UUID
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, NamedTuple, Protocol, Self

from phantom_core.flags import Flag
from phantom_core.protocol import BoardState, DeviceInfo, Method, Scope

PowerMethod = Literal["instant", "average", "estimate"]

made = tuple.__new__
"""Makes a named tuple of all its fields, as `made(Instant, (unix_s, monotonic_s))`, at half of its class's cost."""


class MeterError(Exception):
    """A meter can't do what was asked; the message says what to do about it."""


class MeterUnavailable(MeterError):
    """Nothing of this kind can be read on this machine."""


class DeviceNotFound(MeterError):
    """The driver has no device of that UUID."""


class Instant(NamedTuple):
    """One moment on both clocks. Readings are tuples: making one is a good part of what a window costs."""

    unix_s: float
    """Seconds since 1970, UTC: for people (`at`)."""
    monotonic_s: float
    """The host's monotonic clock, for arithmetic."""

    @classmethod
    def now(cls, monotonic: Callable[[], float] = time.monotonic) -> Self:
        """This moment, by a monotonic clock that counts seconds."""
        return cls(time.time(), monotonic())

    @property
    def at(self) -> datetime:
        """The moment in UTC."""
        return datetime.fromtimestamp(self.unix_s, UTC)

    @classmethod
    def since(cls, monotonic_s: float, monotonic: Callable[[], float] = time.monotonic) -> Self:
        """The middle between a moment of the monotonic clock and now: when a call in between read its value.

        The UTC time is now's: it is for people, and a call takes milliseconds.
        """
        return cls(time.time(), (monotonic_s + monotonic()) / 2)


class EnergyReading(NamedTuple):
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


class PowerReading(NamedTuple):
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
