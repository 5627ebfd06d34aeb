"""Runs a function on several gloo ranks, each in a process of its own, on this machine's loopback.

Not a test. The function must be importable (defined at a module's top level), and so must its arguments'
types.
"""

import multiprocessing
import os
import pickle
import socket
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

COLLECTIVE_TIMEOUT_S = 240
"""Longest that a rank waits for the others in one collective."""
MEETING = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
"""The same for ranks that leave this group and meet in another."""

CAUSE_GRACE_S = 3.0
"""Longest wait for other ranks' words after one failed: a rank that loses a peer may be heard before that peer."""


class RankFailedError(AssertionError):
    """A rank raised or died; the message is every failed rank's traceback, the one that failed first at the top."""


def run_ranks(
    world_size: int, function: Callable[..., Any], *args: Any, deadline_s: float = 480
) -> list[Any]:
    """Calls `function(*args)` on every rank of a new gloo group; returns what each returned, in rank order.

    The default process group is initialised, with one thread per rank, and warnings are errors. The first
    rank that fails ends all of them, as does the deadline; no process outlives the call.

    Raises:
        RankFailedError: A rank raised or died; the first one's traceback comes first, since the others' may
            be no more than its consequences.
        TimeoutError: The ranks were not done by the deadline.
    """
    # A fork server that has torch loaded starts a rank in a tenth of a second instead of three.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed"])
    call = pickle.dumps((function, args))
    with tempfile.TemporaryDirectory() as folder:
        processes, pipes = [], []
        try:
            for rank in range(world_size):
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(
                    target=_rank,
                    args=(rank, world_size, str(Path(folder, "store")), call, sender),
                    daemon=True,
                )
                process.start()
                sender.close()
                processes.append(process)
                pipes.append(receiver)
            return _results(pipes, time.monotonic() + deadline_s)
        finally:
            for process in processes:
                process.kill()
                process.join()
                process.close()
            for pipe in pipes:
                pipe.close()


def from_first(value: Any) -> Any:
    """Rank 0's value, on every rank."""
    import torch.distributed as dist

    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def _results(pipes: list[Connection], deadline: float) -> list[Any]:
    results: list[Any] = [None] * len(pipes)
    failures: list[tuple[float, str]] = []
    waiting = dict(zip(pipes, range(len(pipes)), strict=True))
    while waiting:
        ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = waiting.pop(pipe)
            try:
                failed_at, payload = pickle.loads(pipe.recv_bytes())
            except EOFError:
                # It can't say when; whoever only lost a peer has a traceback to tell.
                failures.append((float("-inf"), f"rank {rank} died without a word"))
                continue
            if failed_at is None:
                results[rank] = payload
            else:
                failures.append((failed_at, f"rank {rank}:\n{payload}"))
        if failures:
            deadline = min(deadline, time.monotonic() + CAUSE_GRACE_S)
    if failures:
        raise RankFailedError("\n".join(told for _, told in sorted(failures)))
    if waiting:
        raise TimeoutError(f"ranks {sorted(waiting.values())} are not done")
    return results


def _rank(rank: int, world_size: int, store: str, call: bytes, sender: Connection) -> None:
    word: tuple[float | None, Any]
    try:
        warnings.simplefilter("error")
        word = (None, _call_in_group(rank, world_size, store, call))
    except BaseException:
        # Said before this process lets its peers go, and with them their own errors.
        word = (time.monotonic(), traceback.format_exc())
    # Plain pickle copies tensors; multiprocessing's own would share memory with a process about to end.
    sender.send_bytes(pickle.dumps(word))
    sender.close()


def _call_in_group(rank: int, world_size: int, store: str, call: bytes) -> Any:
    import torch
    import torch.distributed as dist

    if "lo" in (name for _, name in socket.if_nameindex()):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_S),
    )
    function, args = pickle.loads(call)
    result = function(*args)
    dist.destroy_process_group()
    return result
