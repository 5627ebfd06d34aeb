"""Windows between barriers: synchronize, barrier, read the meter; train; synchronize, barrier, read again."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from phantom_core.meters.base import EnergyReading, Instant, Meter
from phantom_core.meters.windows import window_energy
from phantom_core.protocol import Phase, Window
from ray_jobs.headway import Headway


class PeerFailed(Exception):
    """Another rank of the arm could not finish its part of the window."""


@dataclass
class OpenWindow:
    """A window that is being measured; what it held is filled in before it closes."""

    steps: int = 0
    """Optimizer steps inside."""
    samples: int = 0
    """Rows trained on or evaluated."""
    duration_s: float | None = field(default=None, init=False)
    """Seconds; None until closed."""
    energy_mj: float | None = field(default=None, init=False)
    """Millijoules of this rank's device; None until closed, if unknown, and on ranks that read no device."""
    uncertainty_mj: float | None = field(default=None, init=False)
    """Bound on its reading error; None where the energy is, and where the meter knows none."""
    is_estimate: bool = field(default=False, init=False)
    """Whether no meter read it, so that no longer window would be more precise."""

    def fail(self) -> None:
        """What it held did not come to its end: its energy counts, and how far it came is not known."""
        self.steps = self.samples = 0


class _Edge(NamedTuple):
    """What was read at an end of a window."""

    instant: Instant
    reading: EnergyReading | None
    power_mw: float | None


class WindowClock:
    """Opens and closes windows on one rank.

    Ranks that share a device leave the reading to the lowest of them (`meter` None for the others), so that
    a board is counted once; all of them still keep the barriers.
    """

    def __init__(
        self,
        meter: Meter | None,
        *,
        agree: Callable[[bool], bool],
        synchronize: Callable[[], None],
        emit: Callable[[Window], object],
        charged: bool,
        alarm: Callable[[BaseException], object] | None = None,
        headway: Headway | None = None,
    ) -> None:
        """Args.

        meter: Reads this rank's device; None if another rank does.
        agree: A barrier over the arm's ranks that tells whether all are well.
        synchronize: Waits for this rank's device.
        emit: Takes a finished window; called after the closing barrier.
        charged: Whether the device works for the arm.
        alarm: Frees the other ranks from collectives that wait for this one; called before the vote.
        headway: Is told of both edges; None if nobody asks for it.
        """
        self._alarm = alarm
        self._meter = meter
        self._agree = agree
        self._synchronize = synchronize
        self._emit = emit
        self._charged = charged
        self._headway = headway or Headway()
        self._counts: dict[Phase, int] = {}
        self._told: BaseException | None = None
        self._last_end: _Edge | None = None
        self.failed_at_s: float | None = None
        """When the last error here happened, in seconds since 1970; None if none did."""

    def go_on(self, counts: Mapping[Phase, int]) -> None:
        """Numbers windows from where an earlier attempt stopped."""
        self._counts.update(counts)

    def peers_know(self, error: BaseException) -> bool:
        """Whether the other ranks were told of this error by a vote, so that they are where this rank is."""
        return self._told is error

    @contextmanager
    def window(self, phase: Phase, may_take_s: float = 0.0, *, follows: bool = False) -> Iterator[OpenWindow]:
        """Measures its body on all ranks at once.

        A body that raises still takes part in the closing barrier and votes no there, so that no rank waits
        for ever; the energy spent until then is recorded, and then the error goes on.

        Args:
            phase: What the body does.
            may_take_s: Seconds that it may rightly take, if more than the experiment's limit.
            follows: Begin where the last window ended, which was read there: a reading can take milliseconds. What
                lies between the two, on any rank, is in this one; it must be what belongs to it.

        Raises:
            PeerFailed: All is well here, but not on every rank.
        """
        inside = OpenWindow()
        last_end, self._last_end = self._last_end, None
        name = f"{phase} window {self._counts.get(phase, 0)}"
        self._headway.enter(f"the wait for all ranks before {name}")
        try:
            self._synchronize()
        except BaseException as error:
            self._vote_no(error)
            raise
        if not self._agree(True):
            raise PeerFailed("another rank failed before the window opened")
        self._headway.enter(name, may_take_s)
        start = last_end if follows and last_end is not None else self._begin()
        try:
            yield inside
            self._headway.enter(f"the wait for its device in {name}", may_take_s)
            self._synchronize()
        except BaseException as error:
            self._vote_no(error)
            inside.fail()
            self._close(phase, inside, start)
            raise
        self._headway.enter(f"the wait for all ranks after {name}")
        all_well = self._agree(True)
        if not all_well:
            inside.fail()
        self._close(phase, inside, start)
        if not all_well:
            raise PeerFailed(f"another rank failed in the {phase} window")

    def _vote_no(self, error: BaseException) -> None:
        self._headway.enter(f"the wait for all ranks after its {type(error).__name__}")
        self.failed_at_s = time.time()  # before the vote, which waits for the others
        if self._alarm is not None:
            self._alarm(error)
        self._agree(False)
        self._told = error

    def _begin(self) -> _Edge:
        power_mw = self._power_mw()
        return _Edge(*self._read(), power_mw)

    def _end(self) -> _Edge:
        return _Edge(*self._read(), self._power_mw())

    def _read(self) -> tuple[Instant, EnergyReading | None]:
        reading = self._meter.read_energy() if self._meter is not None else None
        return (reading.instant if reading is not None else Instant.now()), reading

    def _power_mw(self) -> float | None:
        return self._meter.read_power().power_mw if self._meter is not None else None

    def _close(self, phase: Phase, inside: OpenWindow, start: _Edge) -> None:
        end = self._last_end = self._end()
        inside.duration_s = end.instant.monotonic_s - start.instant.monotonic_s
        index = self._counts.get(phase, 0)
        self._counts[phase] = index + 1
        self._headway.enter(f"the storing of {phase} window {index}")
        if self._meter is None or start.reading is None or end.reading is None:
            return
        energy = window_energy(start.reading, end.reading, [start.power_mw, end.power_mw])
        inside.energy_mj, inside.uncertainty_mj = energy.energy_mj, energy.uncertainty_mj
        inside.is_estimate = energy.method == "estimate"
        device = self._meter.device
        self._emit(
            Window(
                phase=phase,
                index=index,
                host=device.host,
                device_uuid=device.uuid,
                charged=self._charged,
                started_at=start.instant.at,
                started_monotonic_s=start.instant.monotonic_s,
                duration_s=inside.duration_s,
                steps=inside.steps,
                samples=inside.samples,
                energy_mj=energy.energy_mj,
                uncertainty_mj=energy.uncertainty_mj,
                method=energy.method,
                scope=energy.scope,
                reason=energy.reason,
                flags=energy.flags,
            )
        )
