"""The ranks of a job, its sampler and its meters as they are, on boards of NVML's stub; the model trains on the CPU."""

import multiprocessing
import os
import sys
import time
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch
from torch._C._distributed_c10d import TCPStore

from phantom_core.meters.choose import MeterRequest, open_meter
from phantom_core.protocol import EVENT_ADAPTER, Assignment, Event
from ray_jobs import bench as bench_module
from ray_jobs.environment import JobEnvironment
from ray_jobs.ranks import Ranks, joined, use_interface_of
from ray_jobs.sampler import Sampler
from ray_jobs.spool import Spool
from tests.nvml_stub.harness import SCRIPT_VARIABLE

NOBODY = JobEnvironment("http://127.0.0.1:9", "nobody", "no token")
"""A service that is not there: what is said stays on the disk, where the test looks."""


MEETING = timedelta(seconds=120)


def start_ranks(
    assignment: Assignment, boards: tuple[str, ...], port: int, folder: Path, patience_s: float
) -> list[SpawnProcess]:
    """Starts a rank for each board; all wait for the stub's script, which is to name them."""
    context = multiprocessing.get_context("spawn")
    processes = []
    for rank in range(len(boards)):
        process = context.Process(
            target=rank_main,
            args=(rank, boards, port, assignment.model_dump_json(), folder, patience_s),
            daemon=True,
        )
        process.start()
        processes.append(process)
    return processes


def rank_main(
    rank: int,
    boards: tuple[str, ...],
    port: int,
    assignment_json: str,
    folder: Path,
    patience_s: float,
) -> None:
    """One rank: what `ray_jobs.worker.work` does, without Ray."""
    bench_module.wait_for_free_boards = partial(bench_module.wait_for_free_boards, patience_s=patience_s)  # type: ignore[attr-defined]
    log = (folder / f"rank-{rank}.log").open("w", buffering=1)
    sys.stdout = sys.stderr = log
    script = Path(os.environ[SCRIPT_VARIABLE])
    while not script.exists():
        time.sleep(0.05)
    torch.set_num_threads(1)
    assignment = Assignment.model_validate_json(assignment_json)
    use_interface_of("127.0.0.1")
    with ExitStack() as stack:
        store = TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False, timeout=MEETING)
        stack.enter_context(joined(rank, len(boards), store, MEETING))
        ranks = stack.enter_context(
            Ranks(
                rank=rank,
                world_size=len(boards),
                store=None,
                device=torch.device("cpu"),
                sizes={planned.arm.world_size for planned in assignment.plan.arms},
                longest_wait_s=300,
                alarm_host="127.0.0.1",
            )
        )
        requests = [MeterRequest(kind="cuda", uuid=uuid) for uuid in boards]
        meter = stack.enter_context(open_meter(requests[rank]))
        if rank == 0:
            watched = [request.from_outside(0) for request in requests]
            sampler = Sampler(NOBODY, assignment, folder, watched, start=0)
            stack.callback(sampler.finish, 0.0)
        spool = stack.enter_context(
            Spool(folder, f"rank-{rank}", assignment.experiment_id, assignment.attempt)
        )
        bench = bench_module.Bench(assignment, ranks, spool, meter)
        bench.announce()
        bench.make_all_runs()


def said(folder: Path) -> list[Event]:
    """All that is on the disk by now, source by source."""
    lines = [
        line
        for file in sorted(folder.glob("*.events"))
        for line in file.read_bytes().splitlines(keepends=True)
        if line.endswith(b"\n")
    ]
    return [EVENT_ADAPTER.validate_json(line) for line in lines]
