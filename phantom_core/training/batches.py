"""Which rows a step trains on, and those rows on the device."""

import torch

from phantom_core.plan import derived_seed
from phantom_core.spec import FeaturePlacement
from phantom_core.tasks.dataset import FloatArray, Targets


class BatchSizeError(ValueError):
    """A batch is larger than the data."""


class RowOrder:
    """The rows of every batch, determined by (rows, batch size, seed) alone, so all ranks and all arms agree.

    Every epoch visits the rows in a new random order. The rows that don't fill a last batch are left out of
    that epoch (drop-last), so all batches are equally large and no batch has a row twice.

    Args:
        rows: Training rows.
        batch_size: Rows per step, b.
        seed: Of the order.

    Raises:
        BatchSizeError: There are fewer rows than one batch needs.
    """

    def __init__(self, rows: int, batch_size: int, seed: int) -> None:
        if batch_size > rows:
            raise BatchSizeError(
                f"batch_size = {batch_size:,} is more than the task's {rows:,} training rows; "
                f"use at most {rows:,}, or more rows"
            )
        self.batch_size = batch_size
        self.steps_per_epoch = rows // batch_size
        self._rows = rows
        self._seed = seed
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int32)

    def batches(self, first_step: int, steps: int) -> torch.Tensor:
        """Row indices (steps, b) of consecutive steps, int32 on the CPU."""
        chosen = torch.empty((steps, self.batch_size), dtype=torch.int32)
        done = 0
        while done < steps:
            epoch, start = divmod(first_step + done, self.steps_per_epoch)
            count = min(steps - done, self.steps_per_epoch - start)
            chosen[done : done + count] = self._epoch_batches(epoch)[start : start + count]
            done += count
        return chosen

    def _epoch_batches(self, epoch: int) -> torch.Tensor:
        if epoch != self._epoch:
            # On the CPU whatever the device: a GPU's generator depends on its number of multiprocessors.
            generator = torch.Generator().manual_seed(derived_seed(self._seed, "batches", epoch))
            self._order = torch.randperm(self._rows, generator=generator, dtype=torch.int32)
            self._epoch = epoch
        used = self._order[: self.steps_per_epoch * self.batch_size]
        return used.view(self.steps_per_epoch, self.batch_size)


class DeviceRows:
    """A part of a dataset on one rank's device.

    Args:
        features: (rows, F) on the host.
        targets: (rows,) classes or (rows, outputs) numbers on the host.
        placement: `split` keeps only this rank's F / p columns.
        rank: This rank of the arm.
        world_size: Ranks of the arm, p, which divides F if features are split.
        device: Where the rows go.
        dtype: The model's number format; features are stored in it.
        loss_dtype: The loss's number format; numbers to predict are stored in it.
    """

    def __init__(
        self,
        features: FloatArray,
        targets: Targets,
        *,
        placement: FeaturePlacement,
        rank: int,
        world_size: int,
        device: torch.device,
        dtype: torch.dtype,
        loss_dtype: torch.dtype,
    ) -> None:
        if placement == "split":
            columns = features.shape[1] // world_size
            features = features[:, rank * columns : (rank + 1) * columns]
        self.features = torch.tensor(features, dtype=dtype, device=device)
        numbers = targets.dtype.kind == "f"
        self.targets = torch.tensor(targets, dtype=loss_dtype if numbers else torch.int64, device=device)

    def __len__(self) -> int:
        """Rows."""
        return len(self.features)


class Batch:
    """Buffers of fixed address that a batch is gathered into, as a CUDA graph needs them.

    Args:
        rows: What is gathered from.
        batch_size: Rows per step, b.
    """

    def __init__(self, rows: DeviceRows, batch_size: int) -> None:
        self._rows = rows
        self.features = rows.features.new_empty((batch_size, *rows.features.shape[1:]))
        self.targets = rows.targets.new_empty((batch_size, *rows.targets.shape[1:]))

    def gather_features(self, index: torch.Tensor) -> None:
        """Fills `features` with the rows of a device index (b,); no word to or from the host."""
        torch.index_select(self._rows.features, 0, index, out=self.features)

    def gather_targets(self, index: torch.Tensor) -> None:
        """Fills `targets` alike."""
        torch.index_select(self._rows.targets, 0, index, out=self.targets)
