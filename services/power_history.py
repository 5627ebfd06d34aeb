"""Power during one run, thinned to what a plot can show, with the run's windows."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Float, Integer, cast, func, select
from sqlalchemy.orm import Session

from services.database import Database
from services.errors import NotFound, QueryError
from services.histories import DEFAULT_POINTS, MOST_POINTS
from services.power_blocks import LONGEST_BLOCK_S, Readings, joined, moment, unpack
from services.run_windows import Stretch, stretches, windows
from services.tables import PowerSample, Run
from services.views import PowerHistory, PowerSeries

DECODED = 500
"""Blocks of a series that are still decoded; longer ones are merged from their blocks' own figures."""
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
        found = stretches(session, run.key, number)
        series = [one for stretch in found for one in _series(session, stretch, max_points)]
        return PowerHistory(
            run_id=run_id,
            attempt=number,
            series=tuple(series),
            windows=windows(session, run.key, number, found),
        )


def _series(session: Session, stretch: Stretch, max_points: int) -> list[PowerSeries]:
    within = (
        PowerSample.device_key == stretch.device.key,
        PowerSample.experiment_attempt == stretch.experiment_attempt,
        PowerSample.started_monotonic_s >= stretch.start_s - LONGEST_BLOCK_S,
        PowerSample.started_monotonic_s <= stretch.end_s,
        PowerSample.ended_monotonic_s >= stretch.start_s,
    )
    counts = session.execute(
        select(PowerSample.method, func.count(), func.sum(PowerSample.sample_count))
        .where(*within)
        .group_by(PowerSample.method)
        .order_by(PowerSample.method)
    ).all()
    made = []
    for method, count, samples in counts:
        chosen = (*within, PowerSample.method == method)
        if count <= DECODED and samples <= DECODED_SAMPLES:
            blocks = session.scalars(select(PowerSample.readings).where(*chosen)).all()
            series = _from_readings(joined([unpack(block) for block in blocks]), stretch, method, max_points)
        else:
            series = _from_blocks(session, chosen, stretch, method, max_points)
        if series.sample_count:
            made.append(series)
    return made


def _from_readings(readings: Readings, stretch: Stretch, method: str, max_points: int) -> PowerSeries:
    first = int(np.searchsorted(readings.monotonic_s, stretch.start_s, side="left"))
    last = int(np.searchsorted(readings.monotonic_s, stretch.end_s, side="right"))
    at_us, power_mw = readings.at_us[first:last], readings.power_mw[first:last]
    if len(at_us) <= max_points:
        mean = least = greatest = power_mw
        starts, bucket_s = np.arange(len(at_us)), None
    else:
        bucket_s = (stretch.end_s - stretch.start_s) / max_points
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
        at=tuple(moment(at) for at in at_us[starts].tolist()),
        power_mw=_known(mean),
        least_mw=_known(least),
        greatest_mw=_known(greatest),
        sample_count=len(at_us),
        bucket_s=bucket_s,
    )


def _from_blocks(
    session: Session,
    chosen: Sequence[ColumnElement[bool]],
    stretch: Stretch,
    method: str,
    max_points: int,
) -> PowerSeries:
    """Merged by the database from the blocks' figures; a block belongs to the bucket that it begins in."""
    bucket_s = (stretch.end_s - stretch.start_s) / max_points
    place = (PowerSample.started_monotonic_s - stretch.start_s) / bucket_s
    # SQLite cuts off what PostgreSQL would round, and may be built without floor.
    is_sqlite = session.get_bind().dialect.name == "sqlite"
    number = cast(place if is_sqlite else func.floor(place), Integer)
    known = PowerSample.sample_count - PowerSample.missing_count
    rows = session.execute(
        select(
            func.min(PowerSample.started_at),
            func.sum(PowerSample.mean_mw * known) / func.nullif(cast(func.sum(known), Float), 0.0),
            func.min(PowerSample.least_mw),
            func.max(PowerSample.greatest_mw),
            func.sum(PowerSample.sample_count),
        )
        .where(*chosen)
        .group_by(number)
        .order_by(number)
    ).all()
    return PowerSeries(
        **_names(stretch, method),
        at=tuple(row[0] for row in rows),
        power_mw=tuple(row[1] for row in rows),
        least_mw=tuple(row[2] for row in rows),
        greatest_mw=tuple(row[3] for row in rows),
        sample_count=int(sum(row[4] for row in rows)),
        bucket_s=bucket_s,
    )


def _names(stretch: Stretch, method: str) -> dict[str, Any]:
    return {
        "host": stretch.device.host,
        "device_uuid": stretch.device.uuid,
        "device_name": stretch.device.name,
        "method": method,
        "charged": stretch.charged,
    }


def _known(values: NDArray[np.float64]) -> tuple[float | None, ...]:
    return tuple(None if math.isnan(value) else value for value in values.tolist())
