"""Power during one run, thinned to what a plot can show, with the run's windows."""

import math
from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Float, Integer, cast, func, select
from sqlalchemy.orm import Session

from services.database import Database, driver_instants
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


_Bucket = tuple[str, int, datetime | str, float | None, float | None, float | None, int, int]
"""Method, number, begin, mean, least and greatest power, samples and blocks, as the driver gives them."""


def _series(session: Session, stretch: Stretch, max_points: int) -> list[PowerSeries]:
    within = (
        PowerSample.device_key == stretch.device.key,
        PowerSample.experiment_attempt == stretch.experiment_attempt,
        PowerSample.started_monotonic_s >= stretch.start_s - LONGEST_BLOCK_S,
        PowerSample.started_monotonic_s <= stretch.end_s,
        PowerSample.ended_monotonic_s >= stretch.start_s,
    )
    made = []
    for method, found in groupby(_buckets(session, within, stretch, max_points), key=itemgetter(0)):
        *_, starts, mean, least, greatest, samples, blocks = zip(*found, strict=True)
        if sum(blocks) <= DECODED and sum(samples) <= DECODED_SAMPLES:
            chosen = select(PowerSample.readings).where(*within, PowerSample.method == method)
            readings = joined([unpack(block) for block in session.scalars(chosen)])
            series = _from_readings(readings, stretch, method, max_points)
        else:
            # The columns' types are the database's promise, so nothing is checked again.
            series = PowerSeries.model_construct(
                **_names(stretch, method),
                at=driver_instants(starts),
                power_mw=mean,
                least_mw=least,
                greatest_mw=greatest,
                sample_count=sum(samples),
                bucket_s=_bucket_s(stretch, max_points),
            )
        if series.sample_count:
            made.append(series)
    return made


def _buckets(
    session: Session, within: Sequence[ColumnElement[bool]], stretch: Stretch, max_points: int
) -> Sequence[_Bucket]:
    """Blocks merged by the database from their own figures, by method and in order of time.

    A block belongs to the bucket that it begins in.
    """
    place = (PowerSample.started_monotonic_s - stretch.start_s) / _bucket_s(stretch, max_points)
    # SQLite cuts off what PostgreSQL would round, and may be built without floor.
    is_sqlite = session.get_bind().dialect.name == "sqlite"
    number = cast(place if is_sqlite else func.floor(place), Integer)
    known = PowerSample.sample_count - PowerSample.missing_count
    statement = (
        select(
            PowerSample.method,
            number.label("number"),
            func.min(PowerSample.started_at),
            func.sum(PowerSample.mean_mw * known) / func.nullif(cast(func.sum(known), Float), 0.0),
            func.min(PowerSample.least_mw),
            func.max(PowerSample.greatest_mw),
            func.sum(PowerSample.sample_count),
            func.count(),
        )
        .where(*within)
        .group_by(PowerSample.method, "number")
        .order_by(PowerSample.method, "number")
    )
    # The driver's own tuples: SQLAlchemy's rows and instants take longer than the database does.
    cursor = session.connection().execute(statement).cursor
    assert cursor is not None, "a SELECT has one"
    buckets: Sequence[_Bucket] = cursor.fetchall()
    return buckets


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
        at=tuple(moment(at) for at in at_us[starts].tolist()),
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


def _known(values: NDArray[np.float64]) -> tuple[float | None, ...]:
    return tuple(None if math.isnan(value) else value for value in values.tolist())
