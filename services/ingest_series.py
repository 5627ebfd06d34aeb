"""Events that only bring figures: windows, metric points, power readings, board states."""

import math
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from phantom_core.protocol import BoardStates, Event, ExperimentStarted, Metrics, PowerSamples, Window
from services.bulk import BlockRow, insert_blocks
from services.event_limits import document, name, number, text
from services.metric_packing import pack as pack_points
from services.power_blocks import LONGEST_BLOCK_S, Readings, cut, readings_of
from services.power_rows import columns_of
from services.subjects import Subject, Touched
from services.tables import BoardStateBlock, Device, PowerSample
from services.tables import Window as WindowRow
from services.upserts import insert_new
from services.window_rows import Span

DeviceKeys = dict[tuple[str, str], int]


def refusal(event: Event) -> str | None:
    """Why an event's series can't be stored; None if it can."""
    if isinstance(event.payload, PowerSamples):
        try:
            readings_of(event.payload)
        except ValueError as error:
            return str(error)
    return None


def store(session: Session, experiment_id: str, events: Sequence[tuple[Event, Subject]]) -> Touched:
    """Writes all figures of the events.

    Args:
        session: A write session.
        experiment_id: The experiment, locked.
        events: New events about known runs, or the experiment itself.

    Returns:
        What must be worked out anew.
    """
    touched = Touched()
    devices = _devices(session, experiment_id, [event for event, _ in events])
    blocks: list[BlockRow] = []
    windows, powers, states = [], [], []
    for event, subject in events:
        match event.payload:
            case Metrics() as payload:
                if payload.points:
                    blocks.append(_block_row(payload, event, subject))
            case Window() as payload:
                key = devices[name(payload.host), name(payload.device_uuid)]
                windows.append(_window_row(payload, event, subject, key))
                _touch_window(touched, payload, subject, key)
            case PowerSamples() as payload:
                key = devices[name(payload.host), name(payload.device_uuid)]
                readings = readings_of(payload)
                powers += [_power_row(payload.method, part, subject, key) for part in cut(readings)]
                times = readings.monotonic_s
                touched.spans.append(
                    Span(key, subject.experiment_attempt, float(times.min()), float(times.max()))
                )
            case BoardStates() as payload:
                key = devices[name(payload.host), name(payload.device_uuid)]
                rows = _states_rows(payload, event, subject, key)
                states += rows
                touched.spans += [
                    Span(
                        key,
                        subject.experiment_attempt,
                        row["started_monotonic_s"],
                        row["ended_monotonic_s"],
                    )
                    for row in rows
                ]
    insert_blocks(session, blocks)
    for table, rows in ((WindowRow, windows), (PowerSample, powers), (BoardStateBlock, states)):
        if rows:
            session.execute(insert(table), rows)
    return touched


IDLE_PHASES = frozenset({"idle_before", "idle_after"})
"""Windows of no run, on which the net energies of all rest."""


def _touch_window(touched: Touched, window: Window, subject: Subject, device_key: int) -> None:
    start_s = window.started_monotonic_s
    touched.spans.append(Span(device_key, subject.experiment_attempt, start_s, start_s + window.duration_s))
    if subject.run_key is not None:
        touched.attempts.add((subject.run_key, subject.number))
    elif window.phase in IDLE_PHASES:
        touched.baseline = True


def _devices(session: Session, experiment_id: str, events: Iterable[Event]) -> DeviceKeys:
    """Keys of all devices that the events name; those that nobody has described yet get a bare row."""
    named: set[tuple[str, str]] = set()
    for event in events:
        match event.payload:
            case Window() | PowerSamples() | BoardStates():
                named.add((name(event.payload.host), name(event.payload.device_uuid)))
            case ExperimentStarted():
                named.update((name(device.host), name(device.uuid)) for device in event.payload.devices)
    if not named:
        return {}
    keys = _known_devices(session, experiment_id)
    missing = sorted(named - keys.keys())
    if missing:
        insert_new(
            session,
            Device,
            [
                {"experiment_id": experiment_id, "host": host, "uuid": uuid, "attempt": 0}
                for host, uuid in missing
            ],
        )
        keys = _known_devices(session, experiment_id)
    return keys


def _known_devices(session: Session, experiment_id: str) -> DeviceKeys:
    rows = session.execute(
        select(Device.host, Device.uuid, Device.key).where(Device.experiment_id == experiment_id)
    )
    return {(host, uuid): key for host, uuid, key in rows}


def _block_row(metrics: Metrics, event: Event, subject: Subject) -> BlockRow:
    assert subject.run_key is not None, "metrics of the experiment itself are refused"
    block = pack_points(metrics.points)
    return (
        subject.run_key,
        subject.number,
        event.seq,
        event.source,
        block.first_step,
        len(metrics.points),
        block.packed,
    )


def _window_row(window: Window, event: Event, subject: Subject, device_key: int) -> dict[str, object]:
    strange = window.energy_mj is not None and not math.isfinite(window.energy_mj)
    return {
        "experiment_id": subject.experiment_id,
        "run_key": subject.run_key,
        "device_key": device_key,
        "attempt": subject.number,
        "experiment_attempt": subject.experiment_attempt,
        "source": event.source,
        "seq": event.seq,
        "phase": window.phase,
        "number": window.index,
        "charged": window.charged,
        "started_at": window.started_at,
        "started_monotonic_s": window.started_monotonic_s,
        "duration_s": window.duration_s,
        "steps": window.steps,
        "samples": window.samples,
        "energy_mj": number(window.energy_mj),
        "uncertainty_mj": number(window.uncertainty_mj),
        "method": window.method,
        "scope": window.scope,
        "reason": f"the meter said {window.energy_mj}" if strange else text(window.reason),
        "flags": [name(flag) for flag in window.flags] or None,
        "sample_count": 0,
    }


def _power_row(method: str, readings: Readings, subject: Subject, device_key: int) -> dict[str, object]:
    return {
        "device_key": device_key,
        "experiment_attempt": subject.experiment_attempt,
        "method": method,
        **columns_of(readings),
    }


def _states_rows(board: BoardStates, event: Event, subject: Subject, device_key: int) -> list[dict[str, Any]]:
    """Blocks of states, none longer than a block of power readings."""
    told = sorted(document(event)["states"], key=itemgetter("monotonic_s"))
    rows: list[dict[str, Any]] = []
    for state, at in zip(told, sorted(state.at for state in board.states), strict=True):
        time_s = state["monotonic_s"]
        if not rows or time_s > rows[-1]["started_monotonic_s"] + LONGEST_BLOCK_S:
            rows.append(
                {
                    "device_key": device_key,
                    "experiment_attempt": subject.experiment_attempt,
                    "started_at": at,
                    "started_monotonic_s": time_s,
                    "states": [],
                }
            )
        rows[-1]["states"].append(state)
        rows[-1]["ended_monotonic_s"] = time_s
    return rows
