"""Samples power at a steady rate, and board states once a second, from outside the training processes.

The loop belongs in a thread or actor of its own. It fails alone: whatever happens, it hands a `SamplerEnded`
to its sink, or, if the sink is what failed, returns it.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from phantom_core.meters.base import Instant, Meter, PowerMethod, PowerReading
from phantom_core.protocol import BoardState, BoardStates, PowerSamples, SamplerEnded

SHORTEST_PERIOD_S = 0.02
"""Floor of the sample period: sensors are refreshed every 20 to 100 ms, more often only repeats readings."""

Sample = PowerSamples | BoardStates | SamplerEnded
Sink = Callable[[Sample], None]


class Stop(Protocol):
    """What ends the loop; `threading.Event` is one."""

    def wait(self, timeout: float | None = None, /) -> bool:
        """Waits until the loop is to end, at most `timeout` seconds; True if it is to end."""
        ...


@dataclass(frozen=True)
class SamplerHealth:
    """How the sampler is doing; read it from any thread."""

    last: Instant | None = None
    """Its heartbeat: when it last read all devices; None before the first time."""
    samples: int = 0
    """Power readings that gave a value."""
    failures: int = 0
    """Power readings that gave none."""
    missed_ticks: int = 0
    """Instants of the schedule that were skipped because the one before took too long."""
    largest_gap_s: float = 0.0
    """Longest time that any device went without a good reading after its first, in seconds."""


class PowerSampler:
    """Reads the power of some devices at a fixed rate.

    Instants are start + n / rate on the monotonic clock, so that errors don't add up; one that is missed is
    skipped, never made up for in a burst.
    """

    def __init__(
        self,
        meters: Sequence[Meter],
        rate_hz: float,
        sink: Sink,
        *,
        host: str,
        state_rate_hz: float = 1.0,
        batch_s: float = 2.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares the loop; `run` starts it.

        Args:
            meters: One for each distinct device; they stay the caller's to close.
            rate_hz: Power readings per second and device, at most 50.
            sink: Takes the batches, on the loop's thread. What it raises ends the loop.
            host: Name of this host.
            state_rate_hz: Readings of clocks, temperature, limit and company per second and board.
            batch_s: Seconds of samples that are handed over together.
            monotonic: Tells the time, in seconds.

        Raises:
            ValueError: A rate or duration that can't be kept.
        """
        if not 0 < rate_hz <= 1 / SHORTEST_PERIOD_S:
            raise ValueError(
                f"rate_hz = {rate_hz}: must be more than 0 and at most {1 / SHORTEST_PERIOD_S:g}"
            )
        if not 0 < state_rate_hz <= rate_hz:
            raise ValueError(f"state_rate_hz = {state_rate_hz}: must be more than 0 and at most {rate_hz:g}")
        if not (batch_s > 0 and math.isfinite(batch_s)):
            raise ValueError(f"batch_s = {batch_s}: must be a positive number of seconds")
        self._period_s = 1 / rate_hz
        self._ticks_per_state = max(1, round(rate_hz / state_rate_hz))
        # Boards take turns with their states, which cost several calls each, so that no instant is missed.
        self._traces = [_Trace(meter, n % self._ticks_per_state) for n, meter in enumerate(meters)]
        self._ticks_per_batch = max(1, round(rate_hz * batch_s))
        self._sink, self._host, self._monotonic = sink, host, monotonic
        self._health = SamplerHealth()

    @property
    def health(self) -> SamplerHealth:
        """How it is doing."""
        return self._health

    def run(self, stop: Stop | None = None) -> SamplerEnded:
        """Samples until it is stopped.

        Args:
            stop: Ends the loop; None samples for ever.

        Returns:
            The account that the sink got last. Its `reason` says what went wrong, if something did.
        """
        stop = stop or threading.Event()
        reason = None
        try:
            self._loop(stop)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        ended = SamplerEnded(
            host=self._host,
            samples=self._health.samples,
            largest_gap_s=self._health.largest_gap_s,
            reason=reason,
        )
        try:
            self._hand_over()
            self._sink(ended)
        except Exception as error:
            told = f"the sink failed: {type(error).__name__}: {error}"
            return ended.model_copy(update={"reason": f"{reason}; {told}" if reason else told})
        return ended

    def _loop(self, stop: Stop) -> None:
        start_s = self._monotonic()
        tick = 0
        next_batch = self._ticks_per_batch
        while True:
            self._read(tick)
            if tick >= next_batch:
                self._hand_over()
                next_batch = tick + self._ticks_per_batch
            due = math.ceil((self._monotonic() - start_s) / self._period_s)
            following = max(tick + 1, due)
            missed_ticks = self._health.missed_ticks + following - tick - 1
            self._health = replace(self._health, missed_ticks=missed_ticks)
            tick = following
            if stop.wait(max(0.0, start_s + tick * self._period_s - self._monotonic())):
                return

    def _read(self, tick: int) -> None:
        good = failed = 0
        largest_gap_s = self._health.largest_gap_s
        for trace in self._traces:
            reading = trace.meter.read_power()
            largest_gap_s = max(largest_gap_s, trace.pause_s(reading.instant))
            for batch in trace.add(reading):
                self._sink(batch)
            good += reading.power_mw is not None
            failed += reading.power_mw is None
            if tick >= trace.next_state_tick and trace.meter.device.kind != "cpu":
                trace.states.append(trace.meter.read_state())
                trace.next_state_tick += self._ticks_per_state
        self._health = replace(
            self._health,
            last=Instant.now(self._monotonic),
            samples=self._health.samples + good,
            failures=self._health.failures + failed,
            largest_gap_s=largest_gap_s,
        )

    def _hand_over(self) -> None:
        for trace in self._traces:
            for batch in trace.take():
                self._sink(batch)


class _Trace:
    """What has been read of one device and not been handed over yet."""

    def __init__(self, meter: Meter, next_state_tick: int) -> None:
        self.meter = meter
        self.next_state_tick = next_state_tick
        self.states: list[BoardState] = []
        self._readings: list[PowerReading] = []
        self._method: PowerMethod | None = None
        self._last_good_s: float | None = None

    def add(self, reading: PowerReading) -> list[PowerSamples]:
        """Adds a reading; returns the earlier ones if they were read by another method."""
        before = []
        if reading.method is not None and self._method not in (None, reading.method):
            before = self._take_power()
        if reading.method is not None:
            self._method = reading.method
        self._readings.append(reading)
        if reading.power_mw is not None:
            self._last_good_s = reading.instant.monotonic_s
        return before

    def pause_s(self, now: Instant) -> float:
        """Seconds since the last good reading; 0 if there never was one."""
        return 0.0 if self._last_good_s is None else now.monotonic_s - self._last_good_s

    def take(self) -> list[PowerSamples | BoardStates]:
        """All that was read, as batches; nothing stays."""
        device = self.meter.device
        batches: list[PowerSamples | BoardStates] = [*self._take_power()]
        if self.states:
            batches.append(BoardStates(host=device.host, device_uuid=device.uuid, states=tuple(self.states)))
            self.states = []
        return batches

    def _take_power(self) -> list[PowerSamples]:
        readings, self._readings = self._readings, []
        # A device that never answered has no method, so its silence can only be told by the failure count.
        if not readings or self._method is None:
            return []
        device = self.meter.device
        return [
            PowerSamples(
                host=device.host,
                device_uuid=device.uuid,
                method=self._method,
                at=tuple(reading.instant.at for reading in readings),
                monotonic_s=tuple(reading.instant.monotonic_s for reading in readings),
                power_mw=tuple(reading.power_mw for reading in readings),
            )
        ]
