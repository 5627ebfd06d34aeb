"""Power readings packed into one value: exact, a few bytes each, decoded by numpy in microseconds.

Layout: one byte version, one byte whether utilisation follows, then, compressed with zlib, little-endian
columns of equal length: int64 microseconds since 1970, float64 monotonic seconds, float64 milliwatts (NaN:
the read failed), and float64 per cent. Columns lie apart, so what hardly changes along one costs little.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from phantom_core.protocol import PowerSamples

LONGEST_BLOCK_S = 60.0
"""No block is stored longer than this; `power_joining.py` makes longer ones of them."""

_VERSION = 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Readings:
    """Consecutive readings of one device; all arrays have one length."""

    at_us: NDArray[np.int64]
    """Microseconds since 1970, UTC."""
    monotonic_s: NDArray[np.float64]
    """The host's monotonic clock, seconds."""
    power_mw: NDArray[np.float64]
    """Milliwatts; NaN where a read failed."""
    utilization_percent: NDArray[np.float64] | None
    """Utilisation; None if not read."""


def readings_of(samples: PowerSamples) -> Readings:
    """The arrays of an event; a power that isn't finite counts as a read that failed.

    Raises:
        ValueError: Its lists differ in length, or it is empty.
    """
    length = len(samples.at)
    lengths = {length, len(samples.monotonic_s), len(samples.power_mw)}
    if samples.utilization_percent:
        lengths.add(len(samples.utilization_percent))
    if len(lengths) > 1 or length == 0:
        raise ValueError(f"the lists of a power series are {sorted(lengths)} long; they must be equally long")
    monotonic_s = np.asarray(samples.monotonic_s, dtype=np.float64)
    if not np.isfinite(monotonic_s).all():
        raise ValueError("a monotonic time of a power series is not finite")
    return Readings(
        at_us=np.fromiter(map(microseconds, samples.at), np.int64, length),
        monotonic_s=monotonic_s,
        power_mw=_floats(samples.power_mw),
        utilization_percent=_floats(samples.utilization_percent) if samples.utilization_percent else None,
    )


def pack(readings: Readings) -> bytes:
    """The bytes of a block."""
    columns = [
        readings.at_us.astype("<i8").tobytes(),
        readings.monotonic_s.astype("<f8").tobytes(),
        readings.power_mw.astype("<f8").tobytes(),
    ]
    if readings.utilization_percent is not None:
        columns.append(readings.utilization_percent.astype("<f8").tobytes())
    header = bytes([_VERSION, readings.utilization_percent is not None])
    return header + zlib.compress(b"".join(columns), level=1)


def unpack(block: bytes) -> Readings:
    """The readings of a block.

    Raises:
        ValueError: A later version made it.
    """
    version, has_utilization = block[0], bool(block[1])
    if version != _VERSION:
        raise ValueError(f"power block of version {version}; this version of Ghostwatt reads {_VERSION}")
    body = zlib.decompress(block[2:])
    columns = 4 if has_utilization else 3
    floats = np.frombuffer(body, "<f8").reshape(columns, -1)
    return Readings(
        at_us=np.frombuffer(body, "<i8", count=floats.shape[1]),
        monotonic_s=floats[1],
        power_mw=floats[2],
        utilization_percent=floats[3] if has_utilization else None,
    )


def cut(readings: Readings) -> list[Readings]:
    """Readings in order of the monotonic clock, cut so that no part is longer than `LONGEST_BLOCK_S`."""
    order = np.argsort(readings.monotonic_s, kind="stable")
    times = readings.monotonic_s[order]
    parts = []
    first = 0
    while first < len(times):
        last = int(np.searchsorted(times, times[first] + LONGEST_BLOCK_S, side="right"))
        chosen = order[first:last]
        utilization = readings.utilization_percent
        parts.append(
            Readings(
                at_us=readings.at_us[chosen],
                monotonic_s=readings.monotonic_s[chosen],
                power_mw=readings.power_mw[chosen],
                utilization_percent=None if utilization is None else utilization[chosen],
            )
        )
        first = last
    return parts


def joined(blocks: Sequence[Readings]) -> Readings:
    """Blocks of one device as one series, in order of the monotonic clock; of equal times the earlier block's first."""
    monotonic_s = np.concatenate([block.monotonic_s for block in blocks])
    order = np.argsort(monotonic_s, kind="stable")
    return Readings(
        at_us=np.concatenate([block.at_us for block in blocks])[order],
        monotonic_s=monotonic_s[order],
        power_mw=np.concatenate([block.power_mw for block in blocks])[order],
        utilization_percent=_joined_utilization(blocks, order),
    )


def moment(at_us: int) -> datetime:
    """The instant of a reading."""
    return _EPOCH + int(at_us) * _MICROSECOND


def microseconds(at: datetime) -> int:
    """An instant as a block keeps it, since 1970."""
    return (at - _EPOCH) // _MICROSECOND


def _joined_utilization(blocks: Sequence[Readings], order: NDArray[np.intp]) -> NDArray[np.float64] | None:
    """Utilisation of all; NaN in blocks that have none, None if none has any."""
    columns = [block.utilization_percent for block in blocks]
    if all(column is None for column in columns):
        return None
    return np.concatenate(
        [
            np.full(len(block.monotonic_s), np.nan) if column is None else column
            for block, column in zip(blocks, columns, strict=True)
        ]
    )[order]


def _floats(values: Sequence[float | None]) -> NDArray[np.float64]:
    array = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return np.where(np.isfinite(array), array, np.nan)
