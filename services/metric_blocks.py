"""Metric points of one event packed into one value: exact, decoded by numpy, many blocks of one shape at once.

Layout: one byte version; one byte of widths; the distinct names, joined by commas and ended by a line feed; then
little-endian columns, each with one entry per point in the order in which they were told: steps less the block's
first step, unsigned, of 0, 1, 2, 4 or 8 bytes; the name's place in the list, of 0 (a single name), 1, 2 or 4 bytes;
float64 values, whatever they are (NaN is data); and, each only if one is known, float64 energies in millijoules and
training seconds, where NaN says that one is unknown. The first step lies beside the block, in a column of its own.
"""

import math
import struct
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phantom_core.protocol import MetricPoint

_VERSION = 1
_UNSIGNED = ("", "B", "H", "I", "Q")
"""Codes of `struct` for whole numbers of 0, 1, 2, 4 and 8 bytes; the place in this row is what a block notes."""
_SIZES = (0, 1, 2, 4, 8)
_NAMES_SHIFT = 3
_HAS_ENERGY = 1 << 6
_HAS_SECONDS = 1 << 7


@dataclass(frozen=True)
class Points:
    """Points of many blocks in no particular order, but those of one block as they were told; all arrays (n,)."""

    names: tuple[str, ...]
    """Distinct names, sorted."""
    name: NDArray[np.intp]
    """Each point's place in `names`."""
    block: NDArray[np.intp]
    """Number of the block that each comes from."""
    step: NDArray[np.int64]
    """Optimizer steps done."""
    value: NDArray[np.float64]
    """Values; NaN and infinities as they were told."""
    energy_mj: NDArray[np.float64]
    """Gross training energy so far, millijoules; NaN if unknown."""
    training_s: NDArray[np.float64]
    """Training seconds so far; NaN if unknown."""


@dataclass(frozen=True)
class Block:
    """One event's points."""

    first_step: int
    """The smallest step, which the others are counted from."""
    packed: bytes
    """See the module's description."""


def pack(points: Sequence[MetricPoint]) -> Block:
    """The points of one event; there is at least one, and every step fits in 64 bits.

    An energy or a time that isn't finite counts as unknown.
    """
    count = len(points)
    assert points, "an event without points has no block"
    steps = [point.step for point in points]
    first = min(steps)
    told = [point.name for point in points]
    places = {name: place for place, name in enumerate(dict.fromkeys(told))}
    step_width, name_width = _width(max(steps) - first), _width(len(places) - 1)
    energies, seconds = [point.energy_mj for point in points], [point.training_s for point in points]
    columns = []
    if step_width:
        columns.append(struct.pack(f"<{count}{_UNSIGNED[step_width]}", *[step - first for step in steps]))
    if name_width:
        columns.append(struct.pack(f"<{count}{_UNSIGNED[name_width]}", *map(places.__getitem__, told)))
    columns.append(struct.pack(f"<{count}d", *[point.value for point in points]))
    widths = step_width | name_width << _NAMES_SHIFT
    for figures, flag in ((energies, _HAS_ENERGY), (seconds, _HAS_SECONDS)):
        if figures.count(None) < count:
            known = [_known(figure) for figure in figures]
            columns.append(struct.pack(f"<{count}d", *known))
            widths |= flag
    header = bytes((_VERSION, widths)) + ",".join(places).encode() + b"\n"
    return Block(first, b"".join((header, *columns)))


def unpack(first_steps: Sequence[int], packed: Sequence[bytes]) -> Points:
    """The points of blocks; `Points.block` counts them as they are given.

    Args:
        first_steps: Of each block.
        packed: The blocks.

    Raises:
        ValueError: A later version made one of them.
    """
    shapes: defaultdict[tuple[bytes, int], list[int]] = defaultdict(list)
    header, length, alike = b"", 0, list[int]()
    for number, block in enumerate(packed):
        # Blocks of one header and length lie alike, so that numpy reads all of them with one call for each column.
        # Most are like the one before, and then their header need not be looked for.
        if len(block) != length or not block.startswith(header):
            header, length = block[: block.index(b"\n", 2) + 1], len(block)
            alike = shapes[header, length]
        alike.append(number)
    names = tuple(sorted({name for header, _ in shapes for name in _names(header)}))
    places = {name: place for place, name in enumerate(names)}
    parts = [
        _unpack_alike(
            header,
            numbers,
            [first_steps[number] for number in numbers],
            [packed[number] for number in numbers],
            places,
        )
        for (header, _), numbers in shapes.items()
    ]
    return Points(names, *(np.concatenate(column) for column in zip(*parts, strict=True))) if parts else _NONE


_Columns = tuple[
    NDArray[np.intp],
    NDArray[np.intp],
    NDArray[np.int64],
    NDArray[np.float64],
    NDArray[np.float64],
    NDArray[np.float64],
]
"""As in `Points`, from `name` on."""


def _unpack_alike(
    header: bytes,
    numbers: Sequence[int],
    first_steps: Sequence[int],
    packed: Sequence[bytes],
    places: dict[str, int],
) -> _Columns:
    version, widths = header[0], header[1]
    if version != _VERSION:
        raise ValueError(f"metric block of version {version}; this version of Ghostwatt reads {_VERSION}")
    step_code, name_code = widths & 7, widths >> _NAMES_SHIFT & 7
    point_bytes = 8 * (1 + bool(widths & _HAS_ENERGY) + bool(widths & _HAS_SECONDS))
    point_bytes += _SIZES[step_code] + _SIZES[name_code]
    blocks, length = len(packed), len(packed[0])
    count = (length - len(header)) // point_bytes
    rows = np.frombuffer(b"".join(packed), np.uint8).reshape(blocks, length)
    column = _columns_after(len(header), rows, count)
    first = np.array(first_steps, np.int64)[:, None]
    step = np.broadcast_to(first, (blocks, count))
    if step_code:
        # Wraps around where it must: from the least to the greatest step is more than a signed number holds.
        step = (first.view(np.uint64) + column(_UNSIGNED[step_code]).astype(np.uint64)).view(np.int64)
    local = np.array([places[name] for name in _names(header)], np.intp)
    name = local[column(_UNSIGNED[name_code])] if name_code else np.full((blocks, count), local[0], np.intp)
    value = column("d")
    unknown = np.full((blocks, count), np.nan)
    energy_mj = column("d") if widths & _HAS_ENERGY else unknown
    training_s = column("d") if widths & _HAS_SECONDS else unknown
    block = np.repeat(np.array(numbers, np.intp), count)
    return name.ravel(), block, step.ravel(), value.ravel(), energy_mj.ravel(), training_s.ravel()


def _columns_after(start: int, rows: NDArray[np.uint8], count: int) -> Callable[[str], NDArray[Any]]:
    """Gives the columns of all blocks one after the other, each as (blocks, count) of the type that is asked for."""
    place = start

    def column(code: str) -> NDArray[Any]:
        nonlocal place
        kind = np.dtype(f"<{code}")
        begin, place = place, place + count * kind.itemsize
        return np.ascontiguousarray(rows[:, begin:place]).view(kind)

    return column


def _names(header: bytes) -> list[str]:
    return header[2:-1].decode().split(",")


def _width(largest: int) -> int:
    """Place in `_UNSIGNED` of the narrowest numbers that hold it."""
    return next(place for place, size in enumerate(_SIZES) if largest < 1 << 8 * size)


def _known(figure: float | None) -> float:
    return math.nan if figure is None or not math.isfinite(figure) else figure


_NONE = Points(
    (),
    np.empty(0, np.intp),
    np.empty(0, np.intp),
    np.empty(0, np.int64),
    np.empty(0),
    np.empty(0),
    np.empty(0),
)
