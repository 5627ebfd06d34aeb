"""Blocks of metric points read back: decoded by numpy, many blocks of one shape at once.

How they are laid out, and made, is in `metric_packing.py`.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.metric_packing import HAS_ENERGY, HAS_SECONDS, NAMES_SHIFT, SIZES, UNSIGNED, VERSION


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
    if version != VERSION:
        raise ValueError(f"metric block of version {version}; this version of Ghostwatt reads {VERSION}")
    step_code, name_code = widths & 7, widths >> NAMES_SHIFT & 7
    point_bytes = 8 * (1 + bool(widths & HAS_ENERGY) + bool(widths & HAS_SECONDS))
    point_bytes += SIZES[step_code] + SIZES[name_code]
    blocks, length = len(packed), len(packed[0])
    count = (length - len(header)) // point_bytes
    rows = np.frombuffer(b"".join(packed), np.uint8).reshape(blocks, length)
    column = _columns_after(len(header), rows, count)
    first = np.array(first_steps, np.int64)[:, None]
    step = np.broadcast_to(first, (blocks, count))
    if step_code:
        # Wraps around where it must: from the least to the greatest step is more than a signed number holds.
        step = (first.view(np.uint64) + column(UNSIGNED[step_code]).astype(np.uint64)).view(np.int64)
    local = np.array([places[name] for name in _names(header)], np.intp)
    name = local[column(UNSIGNED[name_code])] if name_code else np.full((blocks, count), local[0], np.intp)
    value = column("d")
    unknown = np.full((blocks, count), np.nan)
    energy_mj = column("d") if widths & HAS_ENERGY else unknown
    training_s = column("d") if widths & HAS_SECONDS else unknown
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


_NONE = Points(
    (),
    np.empty(0, np.intp),
    np.empty(0, np.intp),
    np.empty(0, np.int64),
    np.empty(0),
    np.empty(0),
    np.empty(0),
)
