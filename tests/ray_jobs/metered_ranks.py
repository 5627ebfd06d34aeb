"""Ranks of a job whose devices are scripted boards: they compute on the CPU and read NVML, as far as they can tell.

Started by a test in a process that finds the stub where it looks for the driver; what they tell goes to spools.
"""

import sys
import threading
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

from phantom_core.meters.choose import MeterRequest, open_distinct_meters, open_meter
from phantom_core.meters.sampling import PowerSampler, Sample
from phantom_core.protocol import Assignment
from ray_jobs import bench as bench_module
from ray_jobs.ranks import Ranks
from ray_jobs.spool import Spool
from tests.distributed import run_ranks

HOST = "node-1"
PERIOD_S = 0.02
"""Of the boards' counters. A meter would look for it for a moment, in which a busy machine may hold it up."""


def requests(boards: list[str], assignment: Assignment) -> list[MeterRequest]:
    scope = assignment.plan.spec.measurement.gpu_scope
    return [MeterRequest("cuda", uuid=uuid, host=HOST, scope=scope) for uuid in boards]


def make_runs(folder: str, boards: list[str]) -> None:
    """One rank: everything that a job's rank does between joining the others and the last word."""
    rank = dist.get_rank()
    assignment = Assignment.model_validate_json((Path(folder) / "assignment.json").read_bytes())
    spool = Spool(Path(folder), f"rank-{rank}", assignment.experiment_id, assignment.attempt)
    ranks = Ranks(
        rank=rank,
        world_size=dist.get_world_size(),
        store=None,
        device=torch.device("cpu"),
        sizes={planned.arm.world_size for planned in assignment.plan.arms},
        longest_wait_s=60,
    )
    # In a container a rank doesn't know how the driver numbers it; here it isn't on a board at all.
    unnumbered = mock.patch.object(bench_module, "driver_process_id", return_value=None)
    period = mock.patch("phantom_core.meters.nvml_meter.measured_period_s", return_value=PERIOD_S)
    with period, ranks, spool, open_meter(requests(boards, assignment)[rank]) as meter, unnumbered:
        bench = bench_module.Bench(assignment, ranks, spool, meter)
        bench.announce()
        bench.make_all_runs()


def main(folder: str, *boards: str) -> None:
    """Samples the boards and has one rank for each make the assignment's runs."""
    assignment = Assignment.model_validate_json((Path(folder) / "assignment.json").read_bytes())
    stop = threading.Event()
    meters = open_distinct_meters(request.from_outside(1) for request in requests(list(boards), assignment))
    with Spool(Path(folder), f"sampler-{HOST}", assignment.experiment_id, assignment.attempt) as spool:

        def keep(sample: Sample) -> None:
            spool.emit(sample)

        sampler = PowerSampler(meters, 20.0, keep, host=HOST)
        thread = threading.Thread(target=sampler.run, args=(stop,))
        thread.start()
        try:
            run_ranks(len(boards), make_runs, folder, list(boards))
        finally:
            stop.set()
            thread.join()
    for meter in meters:
        meter.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
