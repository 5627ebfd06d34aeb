"""Weight gradients beside the backward pass: nothing in it waits for them, so they need not be waited for.

A layer's backward makes the gradient of its input, which the layer before waits for, and those of its weights, which
only the optimizer reads. On a small network each of these GEMMs leaves most of a GPU's multiprocessors idle and costs
its launch all the same, so the weights' gradients go to a stream of their own and fill what the others leave.
Where one gradient fills the device by itself that gains no time and costs a few per cent more energy (measured on
H100s), so there it stays in line. Results are the same to the bit either way.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

TILE = 128 * 128
"""Numbers of a product that one multiprocessor works on at a time."""
LAG = 8
"""Pieces of work that may be under way beside the backward pass; what they read is kept for as long."""


def leaves_idle(device: torch.device, numbers: int) -> bool:
    """Whether making a product of that many numbers leaves multiprocessors idle, so that others can work beside it.

    Args:
        device: Where it is made; one without multiprocessors leaves none idle.
        numbers: Elements of the product.
    """
    if device.type != "cuda":
        return False
    return numbers <= TILE * torch.cuda.get_device_properties(device).multi_processor_count


class SideLane:
    """A stream for work whose results are needed at the end only. Use it inside one backward pass.

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = _side_stream(device)
        self._device = device
        self._under_way: deque[tuple[torch.cuda.Event, tuple[torch.Tensor, ...]]] = deque()

    def suits(self, weight: torch.Tensor) -> bool:
        """Whether making this weight's gradient leaves multiprocessors idle."""
        return leaves_idle(self._device, weight.numel())

    @contextmanager
    def beside(self, *read: torch.Tensor) -> Iterator[None]:
        """Enqueues what is done inside beside the current stream, after what it holds so far.

        Args:
            read: What the work reads. It is kept alive until the work is known to be over: the allocator,
                which knows only the stream that a tensor was made on, would give its memory away.
        """
        while len(self._under_way) >= LAG:
            self._wait_for_oldest()
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(self._stream)
        self._under_way.append((done, read))

    def make_wait(self, stream: torch.cuda.Stream) -> None:
        """Makes another stream, which has waited for the current one, wait for what was enqueued beside that."""
        if self._under_way:  # else the current stream has waited for all of it
            done, _ = self._under_way[-1]
            stream.wait_event(done)

    def join(self) -> None:
        """Makes the current stream wait for all of it."""
        while self._under_way:
            self._wait_for_oldest()

    def _wait_for_oldest(self) -> None:
        done, _ = self._under_way.popleft()
        torch.cuda.current_stream(self._stream.device).wait_event(done)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    # One for all models of the process: cuBLAS keeps a workspace for every stream that it was ever used on.
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
