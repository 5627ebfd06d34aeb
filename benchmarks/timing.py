"""Seconds per call of something small, repeated: inside a CUDA graph on a GPU, in a loop on a CPU."""

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ray_jobs.ranks import Team

WARM_UP = 3
"""Calls before anything is captured or timed."""
MOST_REPEATS = 20_000


@dataclass(frozen=True)
class Repeated:
    """Calls ready to be repeated."""

    repeat: Callable[[], object]
    """Enqueues `calls` calls."""
    calls: int
    """How many."""
    close: Callable[[], object]
    """Frees the graph."""


def repeated(call: Callable[[int], object], calls: int, device: torch.device) -> Repeated:
    """Makes a graph of calls, or a loop.

    Args:
        call: Enqueues the i-th call on the current stream.
        calls: How many in one repetition.
        device: Where.
    """
    if device.type != "cuda":

        def loop() -> None:
            for number in range(calls):
                call(number)

        loop()
        return Repeated(loop, calls, lambda: None)
    stream = _stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for number in range(WARM_UP):
            call(number)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    # Only this thread's calls can spoil the capture: NCCL's watchdog and meters have threads of their own.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for number in range(calls):
            call(number)
    return Repeated(graph.replay, calls, graph.reset)


def seconds_per_call(
    call: Callable[[int], object], calls: int, device: torch.device, team: Team, seconds: float
) -> float:
    """Mean seconds of a call, sustained; every rank of the team must call.

    Args:
        call: Enqueues the i-th call on the current stream.
        calls: How many in one repetition.
        device: Where.
        team: The ranks that time together.
        seconds: How long to time for, at least.

    Returns:
        This rank's seconds per call.
    """
    ready = repeated(call, calls, device)
    try:
        once_s = _timed_s(ready, 1, device, team)
        repeats = team.from_first(min(MOST_REPEATS, max(1, math.ceil(seconds / max(once_s, 1e-9)))))
        return _timed_s(ready, repeats, device, team) / (repeats * calls)
    finally:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        ready.close()


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    # One for all: cuBLAS keeps a workspace for every stream that it was ever used on.
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _timed_s(ready: Repeated, repeats: int, device: torch.device, team: Team) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    team.agree(True)
    if device.type != "cuda":
        start_s = time.perf_counter()
        for _ in range(repeats):
            ready.repeat()
        return time.perf_counter() - start_s
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(repeats):
        ready.repeat()
    end.record()
    torch.cuda.synchronize(device)
    return float(start.elapsed_time(end)) / 1_000
