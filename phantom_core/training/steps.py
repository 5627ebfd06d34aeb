"""What the device must know of the coming steps, put there many steps at a time.

A step asks the host nothing: it looks up its rows, its learning rate and where its loss goes in tables on
the device, at a position that it moves on itself. That makes every step the same sequence of kernels, so
one CUDA graph serves them all, schedules and shuffled batches included.
"""

from collections.abc import Callable

import torch

from phantom_core.training.batches import RowOrder

_MOST_STEPS = 1_024
_MOST_INDICES = 2**22


class StepTables:
    """Tables for `capacity` consecutive steps, refilled by the host when they are used up.

    Args:
        order: Rows of every step.
        rate: Learning rate of every step.
        device: Where the tables are.
        rate_dtype: Number format of the learning rates.
        loss_dtype: Number format of the losses.
    """

    def __init__(
        self,
        order: RowOrder,
        rate: Callable[[int], float],
        *,
        device: torch.device,
        rate_dtype: torch.dtype,
        loss_dtype: torch.dtype,
    ) -> None:
        self.capacity = max(1, min(_MOST_STEPS, _MOST_INDICES // order.batch_size))
        self._order = order
        self._rate = rate
        self._rows = torch.zeros((self.capacity, order.batch_size), dtype=torch.int32, device=device)
        self._rates = torch.zeros(self.capacity, dtype=rate_dtype, device=device)
        self._losses = torch.zeros(self.capacity, dtype=loss_dtype, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)

    def fill(self, first_step: int) -> None:
        """Makes `first_step` the next one; enqueued behind the steps that still read the tables."""
        steps = range(first_step, first_step + self.capacity)
        rates = torch.tensor([self._rate(step) for step in steps], dtype=self._rates.dtype)
        _send(self._order.batches(first_step, self.capacity), self._rows)
        _send(rates, self._rates)
        self._position.zero_()

    def look_up(self, rate: torch.Tensor) -> torch.Tensor:
        """Writes the current step's learning rate into `rate` (1,); returns its rows (b,) on the device."""
        torch.index_select(self._rates, 0, self._position, out=rate)
        return torch.index_select(self._rows, 0, self._position).view(-1)

    def finish(self, loss: torch.Tensor) -> None:
        """Keeps the current step's loss and moves on to the next step, on the device."""
        self._losses.index_copy_(0, self._position, loss.detach().view(1))
        self._position.add_(1)

    def losses(self, start: int, end: int) -> torch.Tensor:
        """A copy of the losses at positions start ... end - 1, on the device and in its order of work."""
        return self._losses[start:end].clone()


def _send(values: torch.Tensor, table: torch.Tensor) -> None:
    if table.device.type == "cuda":
        # From pinned memory the copy waits in the stream while the host goes on; torch's host allocator
        # keeps the memory until the copy is done.
        table.copy_(values.pin_memory(), non_blocking=True)
    else:
        table.copy_(values)
