"""A running energy total for a device that tells only its power: a thread reads it and adds trapezoids."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from phantom_core.meters.base import Instant, PowerReading
from phantom_core.meters.integration import SENSOR_PERIOD_S

PERIOD_S = 0.05
"""Seconds between two readings of power."""
LONGEST_PAUSE_S = 1.0
"""After a longer pause between two good readings the total starts over: what lies between is unknown."""


@dataclass(frozen=True)
class Total:
    """The integral so far."""

    instant: Instant
    """When its last reading was taken."""
    energy_mj: float | None
    """Millijoules since the thread started; None if power can't be read now."""
    accumulated_mj: float
    """Bound on the error of integration so far (see `integration`), in millijoules."""
    epoch: int
    """Counts how often the total started over."""
    reason: str | None
    """Why there is none."""


class PowerAccumulator:
    """Integrates a power source in a daemon thread until it is closed."""

    def __init__(
        self,
        read_power: Callable[[], PowerReading],
        period_s: float = PERIOD_S,
        look_back_s: float = SENSOR_PERIOD_S,
    ) -> None:
        """Starts the thread.

        Args:
            read_power: The source.
            period_s: Seconds between two readings.
            look_back_s: How far back a reading may look, in seconds.
        """
        self._read_power = read_power
        self._look_back_s = look_back_s
        self._period_s = period_s
        self._previous: PowerReading | None = None
        self._energy_mj = 0.0
        self._accumulated_mj = 0.0
        self._epoch = 0
        self._start()

    def read(self) -> Total:
        """The integral up to now, with a reading taken for it.

        In a forked child, which has no thread, it starts over with a thread of its own.
        """
        if self._pid != os.getpid():
            self._previous = None
            self._epoch += 1
            self._start()
        with self._lock:
            reading = self._advance()
            energy_mj = None if reading.power_mw is None else self._energy_mj
            return Total(reading.instant, energy_mj, self._accumulated_mj, self._epoch, reading.reason)

    def close(self) -> None:
        """Ends the thread."""
        self._ended.set()
        if self._pid == os.getpid():
            self._thread.join()

    def _start(self) -> None:
        # A lock or event that another thread held while the process forked would stay held in the child.
        self._lock, self._ended, self._pid = threading.Lock(), threading.Event(), os.getpid()
        self._thread = threading.Thread(target=self._run, args=(self._ended,), name="power", daemon=True)
        self._thread.start()

    def _run(self, ended: threading.Event) -> None:
        while not ended.wait(self._period_s):
            with self._lock:
                self._advance()

    def _advance(self) -> PowerReading:
        reading = self._read_power()
        if reading.power_mw is None:
            return reading
        previous, self._previous = self._previous, reading
        if previous is None or previous.power_mw is None:
            return reading
        elapsed_s = reading.instant.monotonic_s - previous.instant.monotonic_s
        if elapsed_s > LONGEST_PAUSE_S:
            self._epoch += 1
            return reading
        self._energy_mj += elapsed_s * (previous.power_mw + reading.power_mw) / 2
        change_mw = abs(reading.power_mw - previous.power_mw)
        self._accumulated_mj += change_mw * (elapsed_s / 2 + self._look_back_s)
        return reading
