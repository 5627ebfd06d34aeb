"""The file task: the user's own Parquet, CSV or NPZ table."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from phantom_core.spec import FileTask
from phantom_core.task_shapes import task_shape
from phantom_core.tasks.columns import Columns, Values, read_columns
from phantom_core.tasks.dataset import Dataset, FloatArray, Scaling, Targets, TaskError, split_rows
from phantom_core.tasks.roots import resolve_under_roots


def load_file(task: FileTask, data_roots: Sequence[Path]) -> Dataset:
    """Reads the named columns, splits the rows at random and standardises by the training rows.

    Features get mean 0 and variance 1. So does a regression target: its loss is in units of the target's
    variance over the training rows, and 1 is what predicting their mean gives. Nothing is guessed or
    mended: text, nulls, NaN and infinities are refused with column, count and first row (row 0 follows a
    CSV's header).

    Args:
        task: Path, columns, kind of target, split.
        data_roots: Folders under which the path may lie.

    Returns:
        Features (rows, F) float32 and classes (rows,) int64 or targets (rows, 1) float32.

    Raises:
        TaskError: The file can't be read, or a column is missing or holds what can't be learned from.
    """
    path = resolve_under_roots(task.path, data_roots)
    try:
        return _from_columns(task, read_columns(path, [*task.features, task.target]))
    except TaskError as error:
        raise TaskError(f"{task.path}: {error}") from error


def _from_columns(task: FileTask, columns: Columns) -> Dataset:
    target = columns[task.target]
    if target.ndim == 2 and target.shape[1] != 1:
        raise TaskError(f"target {task.target!r} has {target.shape[1]} columns; one can be predicted")
    features = [columns[name].reshape(len(target), -1) for name in task.features]
    shape = task_shape(task)
    found = sum(block.shape[1] for block in features)
    if found != shape.features:
        raise TaskError(f"the features have {found} columns together; set feature_count = {found}")
    train, validation = split_rows(len(target), task.validation_fraction, task.seed)
    targets: Targets
    if task.target_kind == "classification":
        targets = _classes(task, target.reshape(-1))
    else:
        targets = _standardised(task.target, target.reshape(-1, 1), train)
    tables = _tables(features, train, validation)
    return Dataset(
        train_features=tables[0],
        train_targets=targets[train],
        validation_features=tables[1],
        validation_targets=targets[validation],
        shape=shape,
        placement=task.feature_placement,
    )


def _tables(
    features: Sequence[Values],
    train: npt.NDArray[np.int64],
    validation: npt.NDArray[np.int64],
) -> tuple[FloatArray, FloatArray]:
    """Standardised training and evaluation features; one array at a time is held in float64."""
    width = sum(block.shape[1] for block in features)
    tables = tuple(np.empty((len(rows), width), dtype=np.float32) for rows in (train, validation))
    start = 0
    for block in features:
        columns = slice(start, start + block.shape[1])
        scaled = _scaled(block, train)
        for table, rows in zip(tables, (train, validation), strict=True):
            table[:, columns] = scaled[rows]
        start = columns.stop
    return tables[0], tables[1]


def _scaled(block: Values, train: npt.NDArray[np.int64]) -> FloatArray:
    values = block.astype(np.float64)
    # A power of two changes no digit, and brings squares of any column within float64's range.
    values = np.ldexp(values, -np.frexp(np.abs(values).max(axis=0))[1])
    return Scaling.of(values[train]).apply(values)


def _standardised(name: str, target: Values, train: npt.NDArray[np.int64]) -> FloatArray:
    scaled = _scaled(target, train)
    if not scaled[train].any():
        raise TaskError(f"target {name!r} is the same in every training row; there is nothing to learn")
    return scaled


def _classes(task: FileTask, target: Values) -> npt.NDArray[np.int64]:
    assert task.classes is not None
    bad = (target < 0) | (target >= task.classes) | (target != np.floor(target))
    if bad.any():
        raise TaskError(
            f"target {task.target!r} has {int(bad.sum()):,} values that are no class index (the first in row "
            f"{int(np.flatnonzero(bad)[0]):,}); classes = {task.classes} allows the whole numbers 0 to "
            f"{task.classes - 1}"
        )
    return target.astype(np.int64)
