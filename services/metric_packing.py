"""Metric points of one event packed into one value: exact, and read back by `metric_blocks.py`.

Layout: one byte version; one byte of widths; the distinct names, joined by commas and ended by a line feed; then
little-endian columns, each with one entry per point in the order in which they were told: steps less the block's
first step, unsigned, of 0, 1, 2, 4 or 8 bytes; the name's place in the list, of 0 (a single name), 1, 2 or 4 bytes;
float64 values, whatever they are (NaN is data); and, each only if one is known, float64 energies in millijoules and
training seconds, where NaN says that one is unknown. The first step lies beside the block, in a column of its own.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from phantom_core.protocol import MetricPoint

VERSION = 1
UNSIGNED = ("", "B", "H", "I", "Q")
"""Codes of `struct` for whole numbers of 0, 1, 2, 4 and 8 bytes; the place in this row is what a block notes."""
SIZES = (0, 1, 2, 4, 8)
NAMES_SHIFT = 3
HAS_ENERGY = 1 << 6
HAS_SECONDS = 1 << 7


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
    return pack_columns(
        [point.step for point in points],
        [point.name for point in points],
        [point.value for point in points],
        [point.energy_mj for point in points],
        [point.training_s for point in points],
    )


def pack_columns(
    steps: Sequence[int],
    names: Sequence[str],
    values: Sequence[float],
    energies_mj: Sequence[float | None] | None,
    training_s: Sequence[float | None] | None,
) -> Block:
    """The points of one event, a list for each of their figures.

    Args:
        steps: At least one; every step fits in 64 bits.
        names: As in `MetricPoint`.
        values: Whatever they are.
        energies_mj: None, for one or for all, if unknown; one that isn't finite counts as unknown.
        training_s: Likewise.
    """
    count = len(steps)
    assert count, "an event without points has no block"
    first = min(steps)
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    step_width, name_width = _width(max(steps) - first), _width(len(places) - 1)
    columns = []
    if step_width:
        columns.append(struct.pack(f"<{count}{UNSIGNED[step_width]}", *[step - first for step in steps]))
    if name_width:
        columns.append(struct.pack(f"<{count}{UNSIGNED[name_width]}", *map(places.__getitem__, names)))
    columns.append(struct.pack(f"<{count}d", *values))
    widths = step_width | name_width << NAMES_SHIFT
    for figures, flag in ((energies_mj, HAS_ENERGY), (training_s, HAS_SECONDS)):
        if figures is not None and figures.count(None) < count:
            known = [
                math.nan if figure is None or not math.isfinite(figure) else figure for figure in figures
            ]
            columns.append(struct.pack(f"<{count}d", *known))
            widths |= flag
    header = bytes((VERSION, widths)) + ",".join(places).encode() + b"\n"
    return Block(first, b"".join((header, *columns)))


_WIDTHS = (0, 1, 2, 3, 3, 4, 4, 4, 4)
"""Place in `UNSIGNED` of the narrowest numbers that have so many bytes."""


def _width(largest: int) -> int:
    """Place in `UNSIGNED` of the narrowest numbers that hold it."""
    return _WIDTHS[(largest.bit_length() + 7) // 8]
