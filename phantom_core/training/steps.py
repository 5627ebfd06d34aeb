"""What the device must know of the coming steps, put there many steps at a time, and what the past ones left.

A step asks the host nothing: it looks up its rows, its learning rate and where its loss goes in tables on
the device, at a position that it moves on itself. That makes every step the same sequence of kernels, so
one CUDA graph serves them all, schedules and shuffled batches included.
"""

from collections import deque
from collections.abc import Callable

import torch

from phantom_core.training.batches import RowOrder

_MOST_STEPS = 1_024
_MOST_INDICES = 2**22
_MOST_KEPT_TABLES = 1_024


class StepTables:
    """Tables for `capacity` consecutive steps, refilled by the host when they are used up.

    `start`; `rows`, `look_up_rate`, `finish`; `advance`, in this order, are one step; the middle three are the
    device's part, which a graph captures and replays, the outer two are the host's.

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
        self.step = 0
        """Optimizer steps enqueued so far."""
        self._first = 0
        self._unread_from = 0
        self._kept_losses: deque[torch.Tensor] = deque(maxlen=_MOST_KEPT_TABLES)
        self._order = order
        self._rate = rate
        self._rows = torch.zeros((self.capacity, order.batch_size), dtype=torch.int32, device=device)
        self._rates = torch.zeros(self.capacity, dtype=rate_dtype, device=device)
        self._losses = torch.zeros(self.capacity, dtype=loss_dtype, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._fill()

    def seek(self, step: int) -> None:
        """Makes `step` the next one; losses that were not taken are dropped."""
        self.step = step
        self._kept_losses.clear()
        self._fill()

    def start(self) -> None:
        """Refills the tables if they are used up: enqueued behind the steps that still read them, no waiting."""
        if self.step - self._first == self.capacity:
            self._kept_losses.append(self._losses[self._unread_from :].clone())
            self._fill()

    def rows(self) -> torch.Tensor:
        """The step's rows (b,) on the device."""
        return torch.index_select(self._rows, 0, self._position).view(-1)

    def look_up_rate(self, rate: torch.Tensor) -> None:
        """Writes the step's learning rate into `rate` (1,)."""
        torch.index_select(self._rates, 0, self._position, out=rate)

    def finish(self, loss: torch.Tensor) -> None:
        """Keeps the step's loss and moves the device's position on."""
        self._losses.index_copy_(0, self._position, loss.detach().view(1))
        self._position.add_(1)

    def advance(self) -> None:
        """Moves the host's count on."""
        self.step += 1

    def take_losses(self) -> torch.Tensor:
        """Losses since the last call (steps,), oldest first, on the device; of very many tables the latest."""
        position = self.step - self._first
        losses = torch.cat([*self._kept_losses, self._losses[self._unread_from : position]])
        self._kept_losses.clear()
        self._unread_from = position
        return losses

    def _fill(self) -> None:
        self._first = self.step
        self._unread_from = 0
        rates = [self._rate(step) for step in range(self.step, self.step + self.capacity)]
        _send(self._order.batches(self.step, self.capacity), self._rows)
        _send(torch.tensor(rates, dtype=self._rates.dtype), self._rates)
        self._position.zero_()


def _send(values: torch.Tensor, table: torch.Tensor) -> None:
    if table.device.type == "cuda":
        # From pinned memory the copy waits in the stream while the host goes on; torch's host allocator
        # keeps the memory until the copy is done.
        table.copy_(values.pin_memory(), non_blocking=True)
    else:
        table.copy_(values)
