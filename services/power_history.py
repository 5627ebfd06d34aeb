"""Power during one run, thinned to what a plot can show, with the run's windows."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from services.database import Database
from services.errors import NotFound, QueryError
from services.histories import DEFAULT_POINTS, MOST_POINTS
from services.power_blocks import Readings, joined, unpack
from services.power_parts import COARSE, Parts, between, merged
from services.power_rows import FIGURES, LONGEST_JOINED_S, parts_in
from services.run_windows import Stretch, windows
from services.tables import PowerSample, Run
from services.views import PowerHistory, PowerSeries

DECODED = 500
"""Blocks of a series that are still decoded; longer ones are merged from the figures of their blocks' parts."""
DECODED_SAMPLES = 50_000
"""Samples that may be in them."""


def power_history(
    db: Database, run_id: str, *, attempt: int | None = None, max_points: int = DEFAULT_POINTS
) -> PowerHistory:
    """Power of every device while a run lasted, from its first window to its last.

    Args:
        db: The database.
        run_id: Which run.
        attempt: Which start of it; None for the last.
        max_points: Points per device and method at most; more samples are merged into equal buckets.

    Raises:
        NotFound: There is no such run.
        QueryError: `max_points` is out of range.
    """
    if not 2 <= max_points <= MOST_POINTS:
        raise QueryError(f"max_points = {max_points}; it must lie between 2 and {MOST_POINTS}")
    with db.read() as session:
        run = session.scalars(select(Run).where(Run.id == run_id)).one_or_none()
        if run is None:
            raise NotFound("run", run_id)
        number = run.attempt if attempt is None else attempt
        stretches, shown = windows(session, run.key, number)
        series = [one for stretch in stretches for one in _series(session, stretch, max_points)]
        return PowerHistory(
            run_id=run_id,
            attempt=number,
            series=tuple(series),
            windows=shown,
        )


def _series(session: Session, stretch: Stretch, max_points: int) -> list[PowerSeries]:
    within = (
        PowerSample.device_key == stretch.device.key,
        PowerSample.experiment_attempt == stretch.experiment_attempt,
        PowerSample.started_monotonic_s >= stretch.start_s - LONGEST_JOINED_S,
        PowerSample.started_monotonic_s <= stretch.end_s,
        PowerSample.ended_monotonic_s >= stretch.start_s,
    )
    found = session.execute(
        select(PowerSample.method, func.count(), func.sum(PowerSample.sample_count))
        .where(*within)
        .group_by(PowerSample.method)
        .order_by(PowerSample.method)
    ).all()
    made = []
    for method, blocks, samples in found:
        of_method = (*within, PowerSample.method == method)
        if blocks <= DECODED and samples <= DECODED_SAMPLES:
            chosen = select(PowerSample.readings).where(*of_method).order_by(*_IN_ORDER)
            readings = joined([unpack(block) for block in session.scalars(chosen)])
            series = _from_readings(readings, stretch, method, max_points)
        else:
            # Two parts in each bucket are enough for a curve as fine as was asked for.
            is_long = samples >= 2 * COARSE * max_points
            figures = PowerSample.outline if is_long else PowerSample.parts
            series = _from_parts(_parts(session, figures, of_method), stretch, method, max_points)
        if series.sample_count:
            made.append(series)
    return made


_IN_ORDER = (PowerSample.started_monotonic_s, PowerSample.key)


def _parts(
    session: Session, figures: InstrumentedAttribute[bytes | None], of_method: Sequence[ColumnElement[bool]]
) -> Parts:
    # The driver's own tuples: SQLAlchemy's rows and instants take longer than the database does.
    statement = select(figures, *FIGURES).where(*of_method).order_by(*_IN_ORDER)
    cursor = session.connection().execute(statement).cursor
    assert cursor is not None, "a SELECT has one"
    return parts_in(cursor.fetchall())


def _from_parts(parts: Parts, stretch: Stretch, method: str, max_points: int) -> PowerSeries:
    """The curve of parts, each in the bucket that it begins in."""
    parts = between(parts, stretch.start_s, stretch.end_s)
    bucket_s = _bucket_s(stretch, max_points)
    buckets = merged(parts, stretch.start_s, bucket_s, max_points)
    # Made of numbers here, so nothing is checked again.
    return PowerSeries.model_construct(
        **_names(stretch, method),
        at=_moments(buckets.at_us),
        power_mw=_known(buckets.mean_mw),
        least_mw=_known(buckets.least_mw),
        greatest_mw=_known(buckets.greatest_mw),
        sample_count=int(parts["known"].sum() + parts["missing"].sum()),
        bucket_s=bucket_s,
    )


def _from_readings(readings: Readings, stretch: Stretch, method: str, max_points: int) -> PowerSeries:
    first = int(np.searchsorted(readings.monotonic_s, stretch.start_s, side="left"))
    last = int(np.searchsorted(readings.monotonic_s, stretch.end_s, side="right"))
    at_us, power_mw = readings.at_us[first:last], readings.power_mw[first:last]
    if len(at_us) <= max_points:
        mean = least = greatest = power_mw
        starts, bucket_s = np.arange(len(at_us)), None
    else:
        bucket_s = _bucket_s(stretch, max_points)
        places = (readings.monotonic_s[first:last] - stretch.start_s) / bucket_s
        number = np.minimum(places.astype(np.int64), max_points - 1)
        starts = np.flatnonzero(np.diff(number, prepend=-1))
        is_known = ~np.isnan(power_mw)
        with np.errstate(invalid="ignore"):
            mean = np.add.reduceat(np.where(is_known, power_mw, 0.0), starts) / np.add.reduceat(
                is_known.astype(np.float64), starts
            )
        least, greatest = np.fmin.reduceat(power_mw, starts), np.fmax.reduceat(power_mw, starts)
    return PowerSeries(
        **_names(stretch, method),
        at=_moments(at_us[starts]),
        power_mw=_known(mean),
        least_mw=_known(least),
        greatest_mw=_known(greatest),
        sample_count=len(at_us),
        bucket_s=bucket_s,
    )


def _bucket_s(stretch: Stretch, max_points: int) -> float:
    return (stretch.end_s - stretch.start_s) / max_points


def _names(stretch: Stretch, method: str) -> dict[str, Any]:
    return {
        "host": stretch.device.host,
        "device_uuid": stretch.device.uuid,
        "device_name": stretch.device.name,
        "method": method,
        "charged": stretch.charged,
    }


def _moments(at_us: NDArray[np.int64]) -> tuple[datetime, ...]:
    return tuple([at.replace(tzinfo=UTC) for at in at_us.astype("datetime64[us]").tolist()])


def _known(values: NDArray[np.float64]) -> tuple[float | None, ...]:
    if not np.isnan(values).any():
        return tuple(values.tolist())
    return tuple([None if math.isnan(value) else value for value in values.tolist()])
