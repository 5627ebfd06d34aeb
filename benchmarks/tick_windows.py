"""Energy of a short window from counters that move ten times a second: read where they move, not where they rest.

A counter that is up to T old when it is read makes a window of one second uncertain by a tenth. So a board is read at
the moment at which its counter moves, before the work and after it; the board rests between such a moment and the
work, and what it drew there, measured over one more period of the counter after the work, is taken off:

    E = (end - start) - rest power x (seconds before + seconds after)

The bound holds the time between two looks at the counter, at the power then, and half of what was taken off.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from phantom_core.meters.base import EnergyReading, Meter
from phantom_core.meters.windows import window_energy

QUICK_S = 0.005
"""A total that moves more often than this is read as it is."""
LONGEST_PERIOD_S = 1.5
"""A counter that rests longer has stopped."""
LOOK_S = 0.0005
"""Pause between two looks."""
SETTLING_S = 0.05
"""How long after the work the counter may still be behind it: a movement before that is not the one to read."""


@dataclass(frozen=True)
class BoardWindow:
    """One device's part of a window."""

    duration_s: float
    """From the barrier before the work to the end of this device's work."""
    energy_mj: float | None
    """Millijoules; None if unknown."""
    uncertainty_mj: float | None
    """Half-width of its bound; None if unknown."""
    method: str | None
    """How it was read; `nvml.counter` at its ticks is `nvml.counter (ticks)`."""
    reason: str | None = None
    """Why it is unknown."""


class Barrier(Protocol):
    """A team, as far as windows need one."""

    def agree(self, ok: bool) -> bool:
        """Waits for every rank."""
        ...


@dataclass(frozen=True)
class _Tick:
    reading: EnergyReading
    looked_s: float
    """When it was last seen unmoved."""

    @property
    def energy_mj(self) -> float:
        assert self.reading.energy_mj is not None
        return self.reading.energy_mj

    @property
    def at_s(self) -> float:
        """The middle of the interval in which it moved."""
        return (self.looked_s + self.reading.instant.monotonic_s) / 2

    @property
    def doubt_s(self) -> float:
        return (self.reading.instant.monotonic_s - self.looked_s) / 2


@dataclass(frozen=True)
class Clock:
    """Tells the time and waits; tests move one of their own."""

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def measured(
    team: Barrier,
    meter: Meter,
    synchronize: Callable[[], None],
    work: Callable[[], object],
    clock: Clock = Clock(),  # immutable
) -> BoardWindow:
    """Meters work that all ranks of a team do together; every rank of it must call.

    Args:
        team: The ranks.
        meter: Reads this rank's device.
        synchronize: Waits for this rank's device.
        work: Enqueues the work.
        clock: Tells the time.

    Returns:
        This rank's device.
    """
    synchronize()
    start = _next_tick(meter, clock) if _ticks(meter) else None
    plain_start = meter.read_energy()
    team.agree(True)
    began_s = clock.monotonic()
    work()
    synchronize()
    ended_s = clock.monotonic()
    plain_end = meter.read_energy()
    team.agree(True)
    duration_s = ended_s - began_s
    if start is not None:
        clock.sleep(SETTLING_S)
        end = _next_tick(meter, clock)
        rest = _next_tick(meter, clock) if end is not None else None
        if end is not None and rest is not None and end.reading.epoch == start.reading.epoch:
            return _between(start, end, rest, began_s, ended_s)
    energy = window_energy(plain_start, plain_end)
    return BoardWindow(duration_s, energy.energy_mj, energy.uncertainty_mj, energy.method, energy.reason)


def _between(start: _Tick, end: _Tick, rest: _Tick, began_s: float, ended_s: float) -> BoardWindow:
    duration_s = ended_s - began_s
    rest_mw = (rest.energy_mj - end.energy_mj) / (rest.at_s - end.at_s)
    beside_s = max(0.0, began_s - start.at_s) + max(0.0, end.at_s - ended_s)
    energy_mj = end.energy_mj - start.energy_mj - rest_mw * beside_s
    if energy_mj <= 0:
        return BoardWindow(duration_s, None, None, None, "the counter moved less than at rest")
    # At both moments the board rests; its power there is known from one of them, hence the half.
    uncertainty_mj = rest_mw * (start.doubt_s + end.doubt_s + beside_s / 2)
    return BoardWindow(duration_s, energy_mj, uncertainty_mj, f"{start.reading.method} (ticks)")


def _ticks(meter: Meter) -> bool:
    period_s = getattr(meter, "update_period_s", None)
    return period_s is not None and period_s > QUICK_S


def _next_tick(meter: Meter, clock: Clock) -> _Tick | None:
    """Waits until the counter moves; None if it can't be read or stands still."""
    last = meter.read_energy()
    until_s = clock.monotonic() + LONGEST_PERIOD_S
    looked_s = last.instant.monotonic_s
    while clock.monotonic() < until_s:
        clock.sleep(LOOK_S)
        reading = meter.read_energy()
        if reading.energy_mj is None or last.energy_mj is None:
            return None
        if reading.energy_mj != last.energy_mj:
            return _Tick(reading, looked_s)
        looked_s = reading.instant.monotonic_s
    return None
