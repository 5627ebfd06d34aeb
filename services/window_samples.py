"""What samplers saw while a window lasted: integral of power, gaps, throttling, company on the board.

It is worked out when an attempt ends, and after that for each window alone, when a late sample in or around it
arrives, so that neither a long run nor a late block costs more than it brings.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from phantom_core.board_limits import UNKNOWN_LIMITS, BoardLimits
from phantom_core.flags import Flag
from phantom_core.meters.base import PowerMethod
from phantom_core.meters.company import OwnProcesses, state_flags
from phantom_core.meters.integration import SENSOR_PERIOD_S, sensor_period_s
from phantom_core.meters.window_integrals import integrate_windows
from phantom_core.protocol import BoardState
from services.power_blocks import LONGEST_BLOCK_S, joined, unpack
from services.power_rows import LONGEST_JOINED_S
from services.tables import (
    Attempt,
    BoardStateBlock,
    Device,
    Experiment,
    ExperimentAttempt,
    PowerSample,
    Window,
)
from services.window_rows import Span, WindowRow, window_rows

T = TypeVar("T")

MARGIN_S = 5.0
"""Seconds around a window in which samples still matter: the edges are interpolated between two."""
MERGED_WITHIN_S = 60.0
"""Spans of one device that are closer than this are looked at together."""
PREFERRED: tuple[PowerMethod, ...] = ("instant", "average", "estimate")
"""Which power is integrated where a device has several; momentary readings lag least."""
ONE_RANK = OwnProcesses(1)
"""Who is taken to be on a device of which no rank has told yet."""


def windows_near(session: Session, spans: Iterable[Span]) -> list[WindowRow]:
    """The windows of ended attempts that the spans lie in or near, each once."""
    found: dict[int, WindowRow] = {}
    for span, _ in _merged((span, span) for span in spans):
        near = window_rows(
            session,
            Attempt.run_key == Window.run_key,
            Attempt.attempt == Window.attempt,
            Attempt.outcome.is_not(None),
            Window.device_key == span.device_key,
            Window.experiment_attempt == span.experiment_attempt,
            Window.started_monotonic_s <= span.end_s + MARGIN_S,
            Window.started_monotonic_s + Window.duration_s >= span.start_s - MARGIN_S,
        )
        found.update((window.key, window) for window in near)
    return [found[key] for key in sorted(found)]


def look(session: Session, experiment: Experiment, windows: Iterable[WindowRow]) -> None:
    """Works out and writes down what samplers saw during each window.

    Args:
        session: A write session.
        experiment: Whose windows they are.
        windows: Which; one that is there twice is looked at once.
    """
    by_key = {window.key: window for window in windows}
    if not by_key:
        return
    devices = session.scalars(select(Device).where(Device.experiment_id == experiment.id)).all()
    ranks = _ranks_by_device(session, experiment, devices)
    limits = {device.key: device.limits for device in devices}
    changed: list[dict[str, object]] = []
    for span, inside in _merged((_span(window), window) for window in by_key.values()):
        own = ranks.get((span.experiment_attempt, span.device_key), ONE_RANK)
        held = limits.get(span.device_key, UNKNOWN_LIMITS)
        seen = Seen.in_span(session, span).during(inside, experiment.sample_rate_hz, own, held)
        changed += [
            {"window_key": window.key, **values}
            for window, values in zip(inside, seen, strict=True)
            if any(getattr(window, name) != value for name, value in values.items())
        ]
    if changed:
        # One statement for all of them: what is read of windows is read anew, so the session needn't know.
        columns: dict[str, Any] = {name: bindparam(name) for name in changed[0] if name != "window_key"}
        statement = update(Window).where(Window.key == bindparam("window_key")).values(columns)
        session.connection().execute(statement, changed)


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
            select(PowerSample.method, PowerSample.readings)
            .where(
                PowerSample.device_key == span.device_key,
                PowerSample.experiment_attempt == span.experiment_attempt,
                PowerSample.started_monotonic_s >= span.start_s - MARGIN_S - LONGEST_JOINED_S,
                PowerSample.started_monotonic_s <= span.end_s + MARGIN_S,
                PowerSample.ended_monotonic_s >= span.start_s - MARGIN_S,
            )
            # Of readings of the same instant the earlier block's come first, whether joined or not.
            .order_by(PowerSample.started_monotonic_s, PowerSample.key)
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

    def during(
        self,
        windows: Sequence[WindowRow],
        rate_hz: float,
        own: OwnProcesses,
        limits: BoardLimits = UNKNOWN_LIMITS,
    ) -> list[dict[str, object]]:
        """What was seen during each of the windows, by name of the column that holds it."""
        starts_s = np.array([window.started_monotonic_s for window in windows])
        ends_s = np.array([window.ended_monotonic_s for window in windows])
        integrals = integrate_windows(
            self.table(),
            starts_s,
            ends_s,
            margin_s=MARGIN_S,
            rate_hz=rate_hz,
            sensor_period_s=self.look_back_s(rate_hz),
        )
        low, high = np.searchsorted(self.monotonic_s, [starts_s - MARGIN_S, ends_s + MARGIN_S])
        state_times = np.array([state.monotonic_s for state in self.states])
        first, last = np.searchsorted(state_times, starts_s), np.searchsorted(state_times, ends_s, "right")
        return [
            {
                "integral_mj": integral.energy_mj,
                "integral_uncertainty_mj": integral.uncertainty_mj,
                "sample_count": integral.sample_count,
                "largest_gap_s": integral.largest_gap_s,
                "seen_flags": _in_order(
                    *(integral.flags if has_samples else ()),
                    *state_flags(self.states[first_state:last_state], own, limits),
                ),
            }
            for integral, has_samples, first_state, last_state in zip(
                integrals, (high > low).tolist(), first.tolist(), last.tolist(), strict=True
            )
        ]


def _in_order(*flags: Flag) -> list[str] | None:
    return [flag.value for flag in Flag if flag in flags] or None if flags else None


def _span(window: WindowRow) -> Span:
    return Span(
        window.device_key, window.experiment_attempt, window.started_monotonic_s, window.ended_monotonic_s
    )


def _merged(spans: Iterable[tuple[Span, T]]) -> list[tuple[Span, list[T]]]:
    """Spans that touch or nearly do as one, with what is in them, so that many small ones cost one look."""
    merged: list[tuple[Span, list[T]]] = []
    for span, member in sorted(spans, key=itemgetter(0)):
        last, members = merged[-1] if merged else (None, [])
        if (
            last is not None
            and (last.device_key, last.experiment_attempt) == (span.device_key, span.experiment_attempt)
            and span.start_s <= last.end_s + MERGED_WITHIN_S
        ):
            members.append(member)
            merged[-1] = (last._replace(end_s=max(last.end_s, span.end_s)), members)
        else:
            merged.append((span, [member]))
    return merged


def _ranks_by_device(
    session: Session, experiment: Experiment, devices: Sequence[Device]
) -> dict[tuple[int, int], OwnProcesses]:
    """The ranks on each device, by attempt of the experiment and device."""
    keys = {(device.host, device.uuid): device.key for device in devices}
    jobs = session.scalars(select(ExperimentAttempt).where(ExperimentAttempt.experiment_id == experiment.id))
    found: dict[tuple[int, int], list[int | None]] = {}
    for job in jobs:
        for rank in (job.environment or {}).get("ranks", []):
            key = keys.get((rank["host"], rank["device_uuid"]))
            if key is not None:
                found.setdefault((job.attempt, key), []).append(rank.get("process_id"))
    return {where: OwnProcesses.of(process_ids) for where, process_ids in found.items()}
