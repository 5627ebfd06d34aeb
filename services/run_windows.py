"""Windows of one run as its power plot shows them: each, or neighbours merged by the database where there are many."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    and_,
    bindparam,
    case,
    cast,
    func,
    or_,
    select,
)
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import InstrumentedAttribute

from services.tables import Device, Window
from services.views import WindowView

MOST_WINDOWS = 500
"""More than a plot can show; beyond it, neighbours are merged."""

Place = tuple[int, str, int]
"""Device, phase, and number of the merged window."""
Span = tuple[int, bool | int, int, float, float]
"""Device, whether it is charged, attempt of the experiment, begin and end on the monotonic clock, of some windows."""


@dataclass(frozen=True)
class Stretch:
    """The time of one device that a run covers: from its first window to its last."""

    device: Device
    charged: bool
    experiment_attempt: int
    start_s: float
    end_s: float


def windows(
    session: Session, run_key: int, attempt: int
) -> tuple[tuple[Stretch, ...], tuple[WindowView, ...]]:
    """The time that a run covers, by host and device; and its windows in order of time, at most about `MOST_WINDOWS`.

    Args:
        session: A read session.
        run_key: Which run.
        attempt: Which start of it.
    """
    values = {"run_key": run_key, "attempt": attempt}
    # Told by an index alone.
    count = session.execute(select(func.count()).select_from(Window).where(*_of_run()), values).scalar_one()
    if count > MOST_WINDOWS:
        return _merged(session, values | {"each": -(-count // MOST_WINDOWS)})
    rows = session.execute(
        select(Window, Device)
        .join(Device, Device.key == Window.device_key)
        .where(*_of_run())
        .order_by(Window.started_at, Window.phase, Window.number, Device.host, Device.uuid),
        values,
    ).all()
    spans = [
        (
            window.device_key,
            window.charged,
            window.experiment_attempt,
            window.started_monotonic_s,
            window.started_monotonic_s + window.duration_s,
        )
        for window, _ in rows
    ]
    devices = {device.key: device for _, device in rows}
    return _stretches(spans, devices), tuple(_view(window, device) for window, device in rows)


def _stretches(spans: Iterable[Span], devices: Mapping[int, Device]) -> tuple[Stretch, ...]:
    found: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        found[span[0]].append(span)
    made = []
    for device_key, of_device in found.items():
        _, charged, attempts, starts_s, ends_s = zip(*of_device, strict=True)
        stretch = Stretch(devices[device_key], bool(max(charged)), max(attempts), min(starts_s), max(ends_s))
        made.append(stretch)
    return tuple(sorted(made, key=lambda each: (each.device.host, each.device.uuid)))


def _view(window: Window, device: Device) -> WindowView:
    copied = {
        name: getattr(window, name)
        for name in WindowView.model_fields
        if name not in {"host", "device_uuid", "flags", "merged"}
    }
    flags = dict.fromkeys([*(window.flags or ()), *(window.seen_flags or ())])
    return WindowView(**copied, host=device.host, device_uuid=device.uuid, flags=tuple(flags), merged=1)


def _merged(session: Session, values: dict[str, int]) -> tuple[tuple[Stretch, ...], tuple[WindowView, ...]]:
    result = session.execute(_merging(), values)
    names = tuple(result.keys())
    rows = [dict(zip(names, row, strict=True)) for row in result.all()]
    keys = {row["device_key"] for row in rows}
    devices = {each.key: each for each in session.scalars(select(Device).where(Device.key.in_(keys)))}
    flags = _flags(session, values) if any(row["raised"] for row in rows) else {}
    spans = [
        (row["device_key"], row["charged"], row["experiment_attempt"], row["start_s"], row["end_s"])
        for row in rows
    ]
    views = []
    for row in rows:
        device = devices[row["device_key"]]
        raised = flags.get((row["device_key"], row["phase"], row["place"]), ())
        row |= {"host": device.host, "device_uuid": device.uuid, "flags": tuple(raised)}
        row["duration_s"] = row["end_s"] - row["start_s"]
        views.append(WindowView(**{name: row[name] for name in _FIELDS}))
    return _stretches(spans, devices), tuple(views)


@cache
def _merging() -> Select[Any]:
    """Windows of the attempt `attempt` of the run `run_key`, `each` neighbours of a device and phase as one.

    Made once: SQLAlchemy takes as long to build it as a database to answer it.
    """
    return (
        select(
            *_place(),
            func.min(Window.number).label("number"),
            func.max(cast(Window.charged, Integer)).label("charged"),
            func.min(Window.started_at).label("started_at"),
            func.max(Window.experiment_attempt).label("experiment_attempt"),
            func.min(Window.started_monotonic_s).label("start_s"),
            func.max(Window.started_monotonic_s + Window.duration_s).label("end_s"),
            # PostgreSQL adds large integers up as decimal numbers.
            cast(func.sum(Window.steps), BigInteger).label("steps"),
            cast(func.sum(Window.samples), BigInteger).label("samples"),
            _of_all(Window.energy_mj).label("energy_mj"),
            _of_all(Window.uncertainty_mj).label("uncertainty_mj"),
            _if_same(Window.method).label("method"),
            _if_same(Window.scope).label("scope"),
            func.max(Window.reason).label("reason"),
            _of_all(Window.integral_mj).label("integral_mj"),
            _of_all(Window.integral_uncertainty_mj).label("integral_uncertainty_mj"),
            func.sum(Window.sample_count).label("sample_count"),
            func.max(Window.largest_gap_s).label("largest_gap_s"),
            func.count().label("merged"),
            (func.count(Window.flags) + func.count(Window.seen_flags)).label("raised"),
        )
        .where(*_of_run())
        .group_by(*_place())
        .order_by("started_at", Window.phase, "number")
    )


def _of_run() -> Sequence[ColumnElement[bool]]:
    return Window.run_key == bindparam("run_key"), Window.attempt == bindparam("attempt")


def _place() -> Sequence[Any]:
    return Window.device_key, Window.phase, (Window.number // bindparam("each", type_=Integer)).label("place")


_FIELDS = tuple(WindowView.model_fields)


def _flags(session: Session, values: dict[str, int]) -> dict[Place, dict[str, None]]:
    """What any of the merged windows raised, each flag once; `values` are those of `_merging`."""
    found: dict[Place, dict[str, None]] = defaultdict(dict)
    raised = or_(Window.flags.is_not(None), Window.seen_flags.is_not(None))
    query = select(*_place(), Window.flags, Window.seen_flags).where(*_of_run(), raised).distinct()
    for *merged, told, seen in session.execute(query, values).all():
        device_key, phase, number = merged
        found[device_key, phase, number] |= dict.fromkeys([*(told or ()), *(seen or ())])
    return found


def _of_all(column: InstrumentedAttribute[float | None]) -> ColumnElement[float | None]:
    """The sum; unknown where one of them is."""
    return case((func.count(column) == func.count(), func.sum(column)))


def _if_same(column: InstrumentedAttribute[str | None]) -> ColumnElement[str | None]:
    """What all have; unknown where they differ."""
    return case(
        (and_(func.min(column) == func.max(column), func.count(column) == func.count()), func.min(column))
    )
