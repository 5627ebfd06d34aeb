"""Figures of the parts of a long block of power readings, so that a coarse curve needs none of the readings.

A part is a stretch of a block that is no longer than `LONGEST_PART_S`, with about `FINE` readings in the column `parts`
and `COARSE` in the column `outline`. Layout of both: one byte version, then records, little-endian, as `PART` says; not
compressed, since reading is what they are for.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.power_blocks import Readings

FINE = 64
"""Readings in a part, on average: 6 s at ten a second."""
COARSE = 256
"""The same of an outline: a curve of days has more of them than a plot has points."""
LONGEST_PART_S = 60.0
"""As long as the longest block that is stored as it comes."""

PART = np.dtype(
    [
        ("at_us", "<i8"),  # of its earliest reading: microseconds since 1970, UTC
        ("started_s", "<f8"),  # the host's monotonic clock
        ("ended_s", "<f8"),
        ("known", "<u4"),  # readings with a power
        ("missing", "<u4"),  # readings that failed
        ("least_mw", "<f8"),  # NaN where none is known, and so are the next two
        ("mean_mw", "<f8"),
        ("greatest_mw", "<f8"),
    ]
)
Parts = NDArray[np.void]
"""Records of `PART`."""
_VERSION = b"\x01"


@dataclass(frozen=True)
class Buckets:
    """Parts merged for a plot, in order of time; arrays of one length, NaN where nothing is known."""

    at_us: NDArray[np.int64]
    mean_mw: NDArray[np.float64]
    least_mw: NDArray[np.float64]
    greatest_mw: NDArray[np.float64]


def parts_of(readings: Readings, each: int) -> Parts:
    """The parts of readings, as equal in length as their times allow.

    Args:
        readings: At least one, in order of the monotonic clock.
        each: How many readings a part has, on average; fewer where they are rare.
    """
    times, power_mw = readings.monotonic_s, readings.power_mw
    span_s = float(times[-1] - times[0])
    slices = max(math.ceil(len(times) / each), math.ceil(span_s / LONGEST_PART_S))
    number = np.zeros(len(times), np.int64)
    if span_s > 0:
        number = np.minimum(((times - times[0]) * (slices / span_s)).astype(np.int64), slices - 1)
    first = np.flatnonzero(np.diff(number, prepend=-1))
    last = np.append(first[1:], len(times)) - 1
    is_known = ~np.isnan(power_mw)
    made = np.empty(len(first), PART)
    made["at_us"] = np.minimum.reduceat(readings.at_us, first)
    made["started_s"], made["ended_s"] = times[first], times[last]
    made["known"] = np.add.reduceat(is_known.astype(np.int64), first)
    made["missing"] = last - first + 1 - made["known"].astype(np.int64)
    made["least_mw"] = np.fmin.reduceat(power_mw, first)
    made["greatest_mw"] = np.fmax.reduceat(power_mw, first)
    with np.errstate(invalid="ignore"):
        made["mean_mw"] = np.add.reduceat(np.where(is_known, power_mw, 0.0), first) / made["known"]
    return made


def pack_parts(parts: Parts) -> bytes:
    """The bytes of a block's parts."""
    return _VERSION + parts.tobytes()


def unpack_parts(packed: Sequence[bytes]) -> Parts:
    """The parts of several blocks, one after the other.

    Raises:
        ValueError: A later version made one of them.
    """
    for block in packed:
        if block[:1] != _VERSION:
            raise ValueError(
                f"parts of a power block of version {block[0]}; this version of Ghostwatt reads {_VERSION[0]}"
            )
    return np.frombuffer(b"".join([memoryview(block)[1:] for block in packed]), PART)


def between(parts: Parts, start_s: float, end_s: float) -> Parts:
    """Those of some parts that a stretch of the monotonic clock touches; a copy only where they don't lie together."""
    inside = (parts["ended_s"] >= start_s) & (parts["started_s"] <= end_s)
    first, last = int(inside.argmax()), len(inside) - int(inside[::-1].argmax())
    return parts[first:last] if inside[first:last].all() else parts[inside]


def merged(parts: Parts, start_s: float, bucket_s: float, most: int) -> Buckets:
    """Parts merged into equal buckets; each belongs to the bucket that it begins in.

    Args:
        parts: At least one, in any order.
        start_s: Where the first bucket begins, on the monotonic clock; what began earlier belongs to it as well.
        bucket_s: Length of a bucket, seconds.
        most: How many buckets there are.
    """
    starts_s = parts["started_s"]
    if (np.diff(starts_s) < 0).any():
        parts = parts[np.argsort(starts_s, kind="stable")]
        starts_s = parts["started_s"]
    number = np.clip(np.floor((starts_s - start_s) / bucket_s), 0, most - 1)
    first = np.flatnonzero(np.diff(number, prepend=-1.0))
    known = parts["known"].astype(np.float64)
    total = np.where(known > 0, parts["mean_mw"] * known, 0.0)
    with np.errstate(invalid="ignore"):
        mean_mw = np.add.reduceat(total, first) / np.add.reduceat(known, first)
    return Buckets(
        at_us=np.minimum.reduceat(parts["at_us"], first),
        mean_mw=mean_mw,
        least_mw=np.fmin.reduceat(parts["least_mw"], first),
        greatest_mw=np.fmax.reduceat(parts["greatest_mw"], first),
    )
