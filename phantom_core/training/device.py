"""The device that a trainer works on: its stream, and how much of its memory was taken."""

import contextlib
import functools
from collections.abc import Iterator

import torch

from phantom_core.training.precision import float32_products


class WorkDevice:
    """One device as one trainer uses it.

    Args:
        device: A CUDA device, or the CPU.
        tf32: Whether float32 matrix products may use TF32, on devices that have it.
    """

    def __init__(self, device: torch.device | str, tf32: bool = False) -> None:
        self._tf32 = tf32
        self.device = _numbered(torch.device(device))
        self.stream = _work_stream(self.device) if self.device.type == "cuda" else None
        """Where a CUDA device's work is enqueued; None on the CPU."""
        self._bytes_before = 0
        if self.stream is not None:
            _wake_autograd(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            self._bytes_before = torch.cuda.memory_allocated(self.device)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Enqueues what is done inside on the device's stream, with matrix products as precise as was asked."""
        stream = contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream)
        with float32_products(self._tf32), stream:
            yield

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Enqueues what is done inside beside the current stream, after what that holds so far, until `join`.

        What is read or written inside must live until then.
        """
        if self.stream is None:
            yield
            return
        side = _side_stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            yield

    def join(self) -> None:
        """Makes the current stream wait for what was enqueued beside it."""
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(_side_stream(self.device))

    def synchronize(self) -> None:
        """Waits until all work is done."""
        if self.stream is not None:
            # After an error in a step what runs beside it was not joined.
            _side_stream(self.device).synchronize()
            self.stream.synchronize()

    def peak_bytes(self) -> int | None:
        """Most memory that tensors took at once since this object was made; None on the CPU."""
        if self.stream is None:
            return None
        return torch.cuda.max_memory_allocated(self.device) - self._bytes_before

    def free_caches(self) -> None:
        """Gives back memory that libraries keep for next time, so that each arm's peak is its own."""
        if self.stream is not None:
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()


@functools.cache
def _work_stream(device: torch.device) -> torch.cuda.Stream:
    # One for all trainers of the process: cuBLAS keeps a workspace for every stream that it was ever used
    # on. Before what runs beside it: nothing waits for weights' gradients and updates until a step's end.
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


@functools.cache
def _wake_autograd(device: torch.device) -> None:
    # Gradients are made in a thread of autograd's, which has no CUDA context before its first kernel; cuBLAS warns if
    # it has to make that itself.
    torch.autograd.backward(torch.zeros(1, device=device, requires_grad=True).sum())


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _numbered(device: torch.device) -> torch.device:
    """The device with its number, which torch leaves out of `cuda`."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
