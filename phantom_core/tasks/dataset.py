"""What a loaded task is, and the arithmetic that all of them share: splitting rows, standardising columns.

TaskError (a ValueError)   the data can't be had or can't be used; the message says what to change
"""

import functools
import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phantom_core.spec import FeaturePlacement
from phantom_core.task_shapes import TaskShape

FloatArray = npt.NDArray[np.float32]
Targets = npt.NDArray[np.float32] | npt.NDArray[np.int64]

MAX_TABLE_BYTES = 64 * 2**30
"""Most bytes that the features or the targets of a task may fill in memory, as float32."""


class TaskError(ValueError):
    """A task's data can't be had or can't be used."""


@dataclass(frozen=True)
class Dataset:
    """Rows to train and to evaluate on; the arrays are read-only."""

    train_features: FloatArray
    """(train rows, F)."""
    train_targets: Targets
    """(train rows,) int64 class indices, or (train rows, outputs) float32."""
    validation_features: FloatArray
    """(validation rows, F)."""
    validation_targets: Targets
    """(validation rows,) int64 class indices, or (validation rows, outputs) float32."""
    shape: TaskShape
    """Features, outputs and loss."""
    placement: FeaturePlacement = "whole"
    """Whether every rank of an arm sees all feature columns, or rank j its F / p neighbouring ones."""

    def __post_init__(self) -> None:
        """Makes the arrays read-only and holds them to the shape.

        Raises:
            TaskError: An array's shape or type is not what `shape` says, or a part has no rows.
        """
        for part in ("train", "validation"):
            features, targets = getattr(self, f"{part}_features"), getattr(self, f"{part}_targets")
            rows = len(features)
            if rows == 0:
                raise TaskError(f"the task has no {part} rows; give it more rows or another split")
            classes = self.shape.loss == "cross_entropy"
            wanted = (rows,) if classes else (rows, self.shape.outputs)
            dtype = np.int64 if classes else np.float32
            if features.shape != (rows, self.shape.features) or features.dtype != np.float32:
                raise TaskError(
                    f"{part} features are {features.dtype} {features.shape}, "
                    f"not float32 {(rows, self.shape.features)}"
                )
            if targets.shape != wanted or targets.dtype != dtype:
                raise TaskError(
                    f"{part} targets are {targets.dtype} {targets.shape}, not {np.dtype(dtype)} {wanted}"
                )
            features.flags.writeable = False
            targets.flags.writeable = False

    def digest(self) -> str:
        """What tells these rows from others: 32 hexadecimal digits over every number of all four arrays; made once."""
        return self._digest

    @functools.cached_property
    def _digest(self) -> str:
        total = hashlib.blake2b(digest_size=16)
        for array in (
            self.train_features,
            self.train_targets,
            self.validation_features,
            self.validation_targets,
        ):
            total.update(f"{array.dtype} {array.shape};".encode())
            total.update(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)
        return total.hexdigest()


def refuse_oversize(what: str, rows: int, columns: int) -> None:
    """Refuses a table that no host should be asked to hold.

    Raises:
        TaskError: More than `MAX_TABLE_BYTES` as float32.
    """
    size = 4 * rows * columns
    if size > MAX_TABLE_BYTES:
        raise TaskError(
            f"{what}: {rows:,} rows of {columns:,} numbers are {size / 2**30:,.1f} GiB; the limit is "
            f"{MAX_TABLE_BYTES / 2**30:,.0f} GiB; use fewer rows or columns"
        )


def split_rows(
    rows: int, validation_fraction: float, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Which rows are trained on and which are evaluated on, drawn at random without regard to order.

    Args:
        rows: Rows of the table.
        validation_fraction: Share kept for evaluation, in (0, 1); at least one row is.
        seed: Of the draw.

    Returns:
        Row indices for training and for evaluation, both shuffled.

    Raises:
        TaskError: No row would be left to train on.
    """
    validation = max(1, round(rows * validation_fraction))
    if validation >= rows:
        raise TaskError(
            f"validation_fraction = {validation_fraction} of {rows} rows leaves none to train on; "
            "lower it or give more rows"
        )
    order = np.random.Generator(np.random.PCG64(seed)).permutation(rows)
    return order[validation:], order[:validation]


@dataclass(frozen=True)
class Scaling:
    """Mean and standard deviation of columns, from the training rows alone."""

    mean: npt.NDArray[np.float64]
    """(columns,)."""
    std: npt.NDArray[np.float64]
    """(columns,); infinite where a column never varies, so that it becomes 0, in the evaluation rows too."""

    @classmethod
    def of(cls, train: npt.NDArray[np.floating]) -> "Scaling":
        """Measures the columns of (rows, columns) over their known (not NaN) values, in float64.

        The standard deviation is the population's.
        """
        mean = np.asarray(np.nanmean(train, axis=0, dtype=np.float64))
        std = np.asarray(np.nanstd(train, axis=0, dtype=np.float64))
        # Not by std == 0: a constant column's is rounding error, and dividing by it would blow that up to 1.
        constant = np.nanmin(train, axis=0) == np.nanmax(train, axis=0)
        return cls(mean=mean, std=np.where(constant, np.inf, std))

    def apply(self, table: npt.NDArray[np.floating]) -> FloatArray:
        """(table - mean) / std, as float32; (rows, columns) to (rows, columns)."""
        return np.asarray((table - self.mean) / self.std, dtype=np.float32)
