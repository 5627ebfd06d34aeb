"""What the columns of a row of `power_samples` say of the readings in it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from services.database import driver_instants
from services.power_blocks import LONGEST_BLOCK_S, Readings, microseconds, moment, pack
from services.power_parts import COARSE, FINE, PART, Parts, pack_parts, parts_of, unpack_parts
from services.tables import PowerSample

LONGEST_JOINED_S = 600.0
"""No joined block is longer; a search for a stretch of time begins that far back."""
assert LONGEST_JOINED_S >= LONGEST_BLOCK_S

FIGURES = (
    PowerSample.started_at,
    PowerSample.started_monotonic_s,
    PowerSample.ended_monotonic_s,
    PowerSample.sample_count,
    PowerSample.missing_count,
    PowerSample.least_mw,
    PowerSample.mean_mw,
    PowerSample.greatest_mw,
)
"""What `parts_in` needs of a row besides its parts or its outline."""


def columns_of(readings: Readings) -> dict[str, Any]:
    """The columns of a block as it is stored when it comes."""
    power_mw = readings.power_mw[~np.isnan(readings.power_mw)]
    return {
        "started_at": moment(int(readings.at_us.min())),
        "ended_at": moment(int(readings.at_us.max())),
        "started_monotonic_s": float(readings.monotonic_s.min()),
        "ended_monotonic_s": float(readings.monotonic_s.max()),
        "sample_count": len(readings.power_mw),
        "missing_count": len(readings.power_mw) - len(power_mw),
        "least_mw": float(power_mw.min()) if len(power_mw) else None,
        "mean_mw": float(power_mw.mean()) if len(power_mw) else None,
        "greatest_mw": float(power_mw.max()) if len(power_mw) else None,
        "readings": pack(readings),
    }


def joined_columns(readings: Readings) -> dict[str, Any]:
    """The columns of a block that others were joined into; its readings are in order of the monotonic clock."""
    return columns_of(readings) | {
        "outline": pack_parts(parts_of(readings, COARSE)),
        "parts": pack_parts(parts_of(readings, FINE)),
    }


def parts_in(rows: Sequence[tuple[Any, ...]]) -> Parts:
    """The parts of blocks; one that is as it came is one part.

    Args:
        rows: Parts or outline, and `FIGURES`, of at least one block, as the driver gives them.
    """
    alone = [row for row in rows if row[0] is None]
    found = unpack_parts([row[0] for row in rows if row[0] is not None])
    if alone:
        _, started_at, started_s, ended_s, counts, missing, least, mean, greatest = zip(*alone, strict=True)
        parts = np.empty(len(alone), PART)
        parts["at_us"] = [microseconds(at) for at in driver_instants(started_at)]
        parts["started_s"], parts["ended_s"] = started_s, ended_s
        parts["missing"] = missing
        parts["known"] = np.array(counts) - np.array(missing)
        for name, values in (("least_mw", least), ("mean_mw", mean), ("greatest_mw", greatest)):
            parts[name] = np.array(values, dtype=np.float64)  # None becomes NaN
        found = np.concatenate((found, parts))
    return found
