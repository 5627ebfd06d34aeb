"""Capturing one training step in a CUDA graph, and getting over it where that fails."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

_UNFINISHED: list[torch.cuda.CUDAGraph] = []
"""Graphs whose capture could not be ended. torch's allocators may keep a pointer to such a graph for as long
as the process lives, so it must never be freed. There are few, and they hold no device memory."""


@dataclass(frozen=True)
class Capture:
    """How an attempt to capture went."""

    graph: torch.cuda.CUDAGraph | None
    """To be replayed; None if there is none."""
    reason: str | None = None
    """Why there is none."""


def capture(step: Callable[[], None], stream: torch.cuda.Stream) -> Capture:
    """Captures what `step` enqueues, without running it.

    Call it after a few steps on the same stream: in a first step libraries, communicators and optimizer
    state are set up in ways that can't be captured. Steps that ran before make this the only cause of an
    error, so any error means that steps go on without a graph.

    Args:
        step: Enqueues one step on the current stream.
        stream: Where to; not the default stream.

    Returns:
        The graph, or the reason why there is none.
    """
    graph = torch.cuda.CUDAGraph()
    pool = torch.cuda.graph_pool_handle()
    before = torch.cuda.current_stream(stream.device)
    try:
        # Only this thread's calls can spoil the capture: meters and NCCL's watchdog have threads of their
        # own.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            step()
    except Exception as error:
        _clear_up(graph, stream.device, pool)
        # Ending a spoilt capture raises too; what spoilt it is that error's context.
        first = error.__context__ or error
        return Capture(None, f"the step can't be captured: {type(first).__name__}: {_first_line(first)}")
    finally:
        # A capture that can't be ended leaves its stream as the current one.
        torch.cuda.set_stream(before)
    return Capture(graph)


def _clear_up(graph: torch.cuda.CUDAGraph, device: torch.device, pool: tuple[int, int]) -> None:
    """Makes the allocator forget the pool of a capture that could not be ended.

    Otherwise it takes the capture to be under way for ever, and no longer reuses memory that several
    streams used. There is no public call for it; `torch.cuda.memory.MemPool` uses these two.
    """
    try:
        torch._C._cuda_endAllocateToPool(device.index, pool)
    except RuntimeError:
        return  # The capture was ended, the error came from the step alone: torch has cleared up itself.
    _UNFINISHED.append(graph)
    torch._C._cuda_releasePool(device.index, pool)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:300]
