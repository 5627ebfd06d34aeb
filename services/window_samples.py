"""What samplers saw while a window lasted: integral of power, gaps, throttling, company on the board.

It is worked out when an attempt ends, and after that for each window alone, when a late sample in or around it
arrives, so that neither a long run nor a late block costs more than it brings.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Self

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session

from phantom_core.flags import Flag
from phantom_core.meters.base import PowerMethod
from phantom_core.meters.company import OwnProcesses, state_flags
from phantom_core.meters.integration import SENSOR_PERIOD_S, integrate_power, sensor_period_s
from phantom_core.protocol import BoardState
from services.power_blocks import LONGEST_BLOCK_S, joined, unpack
from services.tables import (
    Attempt,
    BoardStateBlock,
    Device,
    Experiment,
    ExperimentAttempt,
    PowerSample,
    Window,
)

MARGIN_S = 5.0
"""Seconds around a window in which samples still matter: the edges are interpolated between two."""
MERGED_WITHIN_S = 60.0
"""Spans of one device that are closer than this are looked at together."""
PREFERRED: tuple[PowerMethod, ...] = ("instant", "average", "estimate")
"""Which power is integrated where a device has several; momentary readings lag least."""
ONE_RANK = OwnProcesses(1)
"""Who is taken to be on a device of which no rank has told yet."""


@dataclass(frozen=True)
class Span:
    """Stretch of one device's time in which something new arrived."""

    device_key: int
    experiment_attempt: int
    start_s: float
    end_s: float

    def covers(self, other: "Span") -> bool:
        """Whether the other lies wholly in this one."""
        same = (self.device_key, self.experiment_attempt) == (other.device_key, other.experiment_attempt)
        return same and self.start_s <= other.start_s and other.end_s <= self.end_s


def windows_near(session: Session, spans: Iterable[Span]) -> list[Window]:
    """The windows of ended attempts that the spans lie in or near, each once."""
    found: dict[int, Window] = {}
    for span in _merged(spans):
        near = session.scalars(
            select(Window)
            .join(Attempt, (Attempt.run_key == Window.run_key) & (Attempt.attempt == Window.attempt))
            .where(
                Window.device_key == span.device_key,
                Window.experiment_attempt == span.experiment_attempt,
                Window.started_monotonic_s <= span.end_s + MARGIN_S,
                Window.started_monotonic_s + Window.duration_s >= span.start_s - MARGIN_S,
                Attempt.outcome.is_not(None),
            )
        )
        found.update((window.key, window) for window in near)
    return [found[key] for key in sorted(found)]


def windows_of(session: Session, attempts: Iterable[Attempt]) -> list[Window]:
    """All windows of some attempts."""
    return [
        window
        for attempt in attempts
        for window in session.scalars(
            select(Window).where(Window.run_key == attempt.run_key, Window.attempt == attempt.attempt)
        )
    ]


def look(session: Session, experiment: Experiment, windows: Sequence[Window]) -> None:
    """Works out what samplers saw during each window.

    Args:
        session: A write session.
        experiment: Whose windows they are.
        windows: Which.
    """
    if not windows:
        return
    rate_hz = experiment.sample_rate_hz
    ranks = _ranks_by_device(session, experiment)
    spans = _merged(_span(window) for window in windows)
    by_key = {window.key: window for window in windows}
    for span in spans:
        seen = Seen.in_span(session, span)
        for window in by_key.values():
            if span.covers(_span(window)):
                own = ranks.get((window.experiment_attempt, window.device_key), ONE_RANK)
                seen.into(window, rate_hz, own)
    session.flush()


@dataclass(frozen=True)
class Seen:
    """Samples and states of one device over one span."""

    method: PowerMethod | None
    """Which power; None without samples."""
    monotonic_s: NDArray[np.float64]
    """When, on the clock of the device's host."""
    power_mw: NDArray[np.float64]
    """Milliwatts; NaN where a read failed."""
    states: Sequence[BoardState]
    """In order of time."""
    """About one a second."""

    @classmethod
    def in_span(cls, session: Session, span: Span) -> Self:
        """What there is of a span and a little around it."""
        rows = session.execute(
            select(PowerSample.method, PowerSample.readings).where(
                PowerSample.device_key == span.device_key,
                PowerSample.experiment_attempt == span.experiment_attempt,
                PowerSample.started_monotonic_s >= span.start_s - MARGIN_S - LONGEST_BLOCK_S,
                PowerSample.started_monotonic_s <= span.end_s + MARGIN_S,
                PowerSample.ended_monotonic_s >= span.start_s - MARGIN_S,
            )
        ).all()
        method = next((name for name in PREFERRED if any(row.method == name for row in rows)), None)
        blocks = [unpack(row.readings) for row in rows if row.method == method]
        blocks_of_states = session.scalars(
            select(BoardStateBlock.states).where(
                BoardStateBlock.device_key == span.device_key,
                BoardStateBlock.experiment_attempt == span.experiment_attempt,
                BoardStateBlock.started_monotonic_s >= span.start_s - LONGEST_BLOCK_S,
                BoardStateBlock.started_monotonic_s <= span.end_s,
                BoardStateBlock.ended_monotonic_s >= span.start_s,
            )
        )
        states = sorted(
            (BoardState.model_validate(state) for block in blocks_of_states for state in block),
            key=attrgetter("monotonic_s"),
        )
        readings = joined(blocks) if blocks else None
        nothing = np.zeros(0)
        return cls(
            method=method,
            monotonic_s=readings.monotonic_s if readings else nothing,
            power_mw=readings.power_mw if readings else nothing,
            states=states,
        )

    def look_back_s(self, rate_hz: float) -> float:
        """How far back a sample may look, in seconds."""
        return SENSOR_PERIOD_S if self.method is None else sensor_period_s(self.method, rate_hz)

    def table(self, start_s: float = -math.inf, end_s: float = math.inf) -> NDArray[np.float64]:
        """Samples between two moments as (n, 2): monotonic seconds, milliwatts."""
        first, last = np.searchsorted(self.monotonic_s, [start_s, end_s])
        return np.column_stack((self.monotonic_s[first:last], self.power_mw[first:last]))

    def into(self, window: Window, rate_hz: float, own: OwnProcesses) -> None:
        """Fills in what was seen during a window."""
        start_s, end_s = window.started_monotonic_s, window.started_monotonic_s + window.duration_s
        samples = self.table(start_s - MARGIN_S, end_s + MARGIN_S)
        integral = integrate_power(
            samples, start_s, end_s, rate_hz=rate_hz, sensor_period_s=self.look_back_s(rate_hz)
        )
        window.integral_mj = integral.energy_mj
        window.integral_uncertainty_mj = integral.uncertainty_mj
        window.sample_count = integral.sample_count
        window.largest_gap_s = integral.largest_gap_s
        flags = set(integral.flags) if len(samples) else set()
        # By bisection: a long run has as many states as windows, and would look at each for each.
        first = bisect_left(self.states, start_s, key=attrgetter("monotonic_s"))
        last = bisect_right(self.states, end_s, key=attrgetter("monotonic_s"))
        flags.update(state_flags(self.states[first:last], own))
        window.seen_flags = [flag.value for flag in Flag if flag in flags] or None


def _span(window: Window) -> Span:
    start_s = window.started_monotonic_s
    return Span(window.device_key, window.experiment_attempt, start_s, start_s + window.duration_s)


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Spans that touch or nearly do as one, so that many small ones cost one look."""
    merged: list[Span] = []
    key = attrgetter("device_key", "experiment_attempt", "start_s", "end_s")
    for span in sorted(spans, key=key):
        last = merged[-1] if merged else None
        if (
            last is not None
            and (last.device_key, last.experiment_attempt) == (span.device_key, span.experiment_attempt)
            and span.start_s <= last.end_s + MERGED_WITHIN_S
        ):
            merged[-1] = replace(last, end_s=max(last.end_s, span.end_s))
        else:
            merged.append(span)
    return merged


def _ranks_by_device(session: Session, experiment: Experiment) -> dict[tuple[int, int], OwnProcesses]:
    """The ranks on each device, by attempt of the experiment and device."""
    devices = session.scalars(select(Device).where(Device.experiment_id == experiment.id))
    keys = {(device.host, device.uuid): device.key for device in devices}
    jobs = session.scalars(select(ExperimentAttempt).where(ExperimentAttempt.experiment_id == experiment.id))
    found: dict[tuple[int, int], list[int | None]] = {}
    for job in jobs:
        for rank in (job.environment or {}).get("ranks", []):
            key = keys.get((rank["host"], rank["device_uuid"]))
            if key is not None:
                found.setdefault((job.attempt, key), []).append(rank.get("process_id"))
    return {where: OwnProcesses.of(process_ids) for where, process_ids in found.items()}
