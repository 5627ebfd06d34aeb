"""Named columns of numbers out of a Parquet, CSV or NPZ file, with everything else refused.

Files come from users: sizes are checked against what the file declares before anything is allocated,
nothing is ever unpickled, and no message quotes the file's contents or its place on the host.
"""

import difflib
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib import format as npy
from pyarrow import csv, parquet

from phantom_core.tasks.dataset import TaskError, refuse_oversize

MAX_FILE_BYTES = 16 * 2**30
"""Largest file that is read."""

Values = npt.NDArray[Any]
Columns = Mapping[str, Values]

_NUMBER = r"^[ \t]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t]*$"
_MALFORMED = (
    pa.ArrowException,
    zipfile.BadZipFile,
    EOFError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
    zlib.error,
)
_SHOWN = 3


def read_columns(path: Path, names: Sequence[str]) -> Columns:
    """Reads columns as arrays of finite numbers.

    Args:
        path: The file; its suffix says what it is.
        names: Columns, or arrays of an NPZ, in the order wanted.

    Returns:
        For every name an array (rows,), or (rows, k) for a 2-D array of an NPZ; integers, floats or bools.

    Raises:
        TaskError: The file is too large or malformed, a column is missing or holds anything but finite
            numbers.
    """
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise TaskError(
            f"the file has {size / 2**30:,.1f} GiB; at most {MAX_FILE_BYTES / 2**30:,.0f} GiB are read; "
            "split it or keep only the columns you need"
        )
    reader: Callable[[BinaryIO, Sequence[str]], Columns]
    reader = {".parquet": _read_parquet, ".csv": _read_csv, ".npz": _read_npz}[path.suffix]
    try:
        with path.open("rb") as stream:
            columns = reader(stream, names)
    except TaskError:
        raise
    except _MALFORMED as error:
        raise TaskError(
            f"the file is no well-formed {path.suffix[1:].upper()} ({type(error).__name__}); write it anew"
        ) from error
    _refuse({name: _not_finite(values) for name, values in columns.items()})
    return columns


def _read_parquet(stream: BinaryIO, names: Sequence[str]) -> Columns:
    with parquet.ParquetFile(stream) as file:
        schema = file.schema_arrow
        _require(names, schema.names)
        _refuse({name: _wrong_type(schema.field(name).type) for name in names})
        refuse_oversize("the table", file.metadata.num_rows, len(names))
        return _from_arrow(file.read(columns=list(names)), names)


def _read_csv(stream: BinaryIO, names: Sequence[str]) -> Columns:
    try:
        with csv.open_csv(stream) as reader:
            header = reader.schema.names
        _require(names, header)
        stream.seek(0)
        table = csv.read_csv(stream, convert_options=csv.ConvertOptions(include_columns=list(names)))
    except pa.ArrowInvalid as error:
        # Only the numbers of pyarrow's message: it quotes the row too.
        uneven = re.search(r"Expected (\d+) columns, got (\d+)", str(error))
        reason = f"a row has {uneven[2]} of {uneven[1]} columns" if uneven else "empty, or not text in UTF-8"
        raise TaskError(f"the file is no well-formed CSV ({reason}); write it anew") from error
    refuse_oversize("the table", table.num_rows, len(names))
    return _from_arrow(table, names)


def _from_arrow(table: pa.Table, names: Sequence[str]) -> Columns:
    _refuse({name: _not_numbers(table[name]) for name in names})
    return {name: _to_numpy(table[name]) for name in names}


def _to_numpy(column: pa.ChunkedArray) -> Values:
    if pa.types.is_decimal(column.type):
        column = pc.cast(column, pa.float64())
    values: Values = column.to_numpy()
    return values


def _not_numbers(column: pa.ChunkedArray) -> str | None:
    if len(column) and column.null_count:
        first = pc.index(pc.is_null(column), True).as_py()
        return f"{column.null_count:,} missing values (the first in row {first:,})"
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        bad = pc.invert(pc.match_substring_regex(column, _NUMBER))
        count = pc.sum(bad).as_py() or 0
        if count:
            return f"{count:,} values that are no numbers (the first in row {pc.index(bad, True).as_py():,})"
    return _wrong_type(column.type)


def _wrong_type(kind: pa.DataType) -> str | None:
    types = pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind):
        return None
    return f"values of type {kind}, not numbers"


def _read_npz(stream: BinaryIO, names: Sequence[str]) -> Columns:
    with zipfile.ZipFile(stream) as archive:
        members = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        _require(names, list(members))
        headers = {name: _npy_header(archive, members[name]) for name in names}
        _refuse({name: _wrong_array(*headers[name]) for name in names})
        rows = {name: headers[name][0][0] for name in names}
        first = names[0]
        for name in names:
            if rows[name] != rows[first]:
                raise TaskError(
                    f"array {_short(name)} has {rows[name]:,} rows, {_short(first)} has {rows[first]:,}; "
                    "they must be equal"
                )
        refuse_oversize("the arrays", rows[first], sum((*headers[name][0], 1)[1] for name in names))
        columns = {}
        for name in names:
            with archive.open(members[name]) as member:
                columns[name] = npy.read_array(member, allow_pickle=False)
        return columns


def _npy_header(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> tuple[tuple[int, ...], np.dtype[Any]]:
    with archive.open(entry) as member:
        version = npy.read_magic(member)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(member)
    return shape, dtype


def _wrong_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str | None:
    if dtype.kind not in "biuf":
        return f"values of type {dtype}, not numbers"
    if len(shape) not in (1, 2):
        return f"shape {shape}; (rows,) and (rows, columns) can be read"
    return None


def _not_finite(values: Values) -> str | None:
    if values.dtype.kind != "f":
        return None
    bad = ~np.isfinite(values)
    if not bad.any():
        return None
    rows = np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))
    return f"{int(bad.sum()):,} values that are NaN or infinite (the first in row {rows[0]:,})"


def _require(names: Sequence[str], available: Sequence[str]) -> None:
    """Refuses missing and ambiguous columns, naming the nearest available ones."""
    present = set(available)
    missing = [name for name in names if name not in present]
    if missing:
        near = [f"{_short(name)}{_nearest(name, available)}" for name in missing[:_SHOWN]]
        raise TaskError(
            f"the file has no column {'; '.join(near)}{_further(len(missing))}; "
            f"it has {len(available):,} columns"
        )
    for name in names:
        if list(available).count(name) > 1:
            raise TaskError(f"the file has more than one column {_short(name)}; rename all but one")


def _nearest(name: str, available: Sequence[str]) -> str:
    by_lower = {other.lower(): other for other in available[:10_000]}
    close = difflib.get_close_matches(name.lower(), by_lower, n=_SHOWN)
    return f" (nearest: {', '.join(_short(by_lower[other]) for other in close)})" if close else ""


def _refuse(problems: Mapping[str, str | None]) -> None:
    found = [f"column {_short(name)} has {problem}" for name, problem in problems.items() if problem]
    if found:
        raise TaskError(
            f"{'; '.join(found[:_SHOWN])}{_further(len(found))}; only finite numbers can be learned from"
        )


def _further(count: int) -> str:
    return f" and {count - _SHOWN:,} more columns" if count > _SHOWN else ""


def _short(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:77] + "...")
