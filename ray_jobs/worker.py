"""One rank of an experiment: joins the others, makes all runs with them, delivers what they told."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

import ray
import ray.train
import ray.train.collective
import torch

from phantom_core.meters.choose import open_meter
from phantom_core.protocol import (
    Alive,
    Assignment,
    ExperimentFinished,
    Reason,
)
from ray_jobs.bench import Bench
from ray_jobs.devices import meter_request
from ray_jobs.environment import JobEnvironment
from ray_jobs.headway import Headway
from ray_jobs.node_agent import NodeAgent
from ray_jobs.pulse import Pulse
from ray_jobs.ranks import COMPUTE_TIMEOUT, Arenas, Ranks, joined, meet, use_interface_of
from ray_jobs.reporter import Reporter
from ray_jobs.signs import Signs
from ray_jobs.spool import Spool, SpoolError, remove_spool, spool_folder

SAMPLER_UP_S = 60.0
"""Seconds that the sampler may take to come up before training goes on without it."""
LAST_WORD_S = 120.0
"""Seconds for which a node goes on trying to deliver its ranks' last events."""
DELIVERY_S = 3 * LAST_WORD_S
"""Seconds that all of a node's delivery may take: the sampler first writes down its own."""


def work(
    job: JobEnvironment,
    assignment: Assignment,
    *,
    device: torch.device,
    arenas: Arenas,
    agent: NodeAgent | None,
) -> bool:
    """Makes every run of the assignment together with the other ranks, and says that all is done.

    Args:
        job: The service and the experiment.
        assignment: The plan and the runs still to make.
        device: Where this rank computes.
        arenas: The worker group's memory for ghosts.
        agent: The node's sampler, on the rank that looks after it.

    Returns:
        Whether the service has everything that this experiment's ranks had to tell.

    Raises:
        SpoolError: There was no room on a disk for what a rank had to tell, and none came in time.
    """
    context = ray.train.get_context()
    rank = context.get_world_rank()
    resources = assignment.plan.spec.resources
    if device.type == "cpu":
        torch.set_num_threads(max(1, int(resources.cpus_per_rank)))
    folder = spool_folder(assignment.experiment_id, assignment.attempt, "ranks")
    with ExitStack() as stack:
        spool = stack.enter_context(
            Spool(folder, f"rank-{rank}", assignment.experiment_id, assignment.attempt)
        )
        ranks = stack.enter_context(
            Ranks(
                rank=rank,
                world_size=context.get_world_size(),
                store=None,
                device=device,
                sizes={planned.arm.world_size for planned in assignment.plan.arms},
                longest_wait_s=resources.deadline_s,
                arenas=arenas,
                alarm_host=ray.util.get_node_ip_address(),
            )
        )
        request = meter_request(device, rank, assignment.plan.spec.measurement.gpu_scope)
        meter = stack.enter_context(open_meter(request))
        requests = ranks.everyone.gather(request.from_outside(os.getpid()))
        local = [told for told in requests if told.host == request.host]
        if agent is not None:
            stack.callback(agent.finish, LAST_WORD_S)
            agent.begin(job, assignment, folder, local, SAMPLER_UP_S)
        ranks.everyone.agree(True)
        headway = Headway()
        bench = Bench(assignment, ranks, spool, meter, headway)
        bench.announce()
        signs = stack.enter_context(Signs(job, assignment, folder))
        size = context.get_world_size()
        pulse = stack.enter_context(
            Pulse(
                ranks.store(),
                rank,
                size,
                lambda: signs.tell(Alive(ranks=size)),
                headway=headway,
                tell_still=lambda told: signs.tell(_stuck(told)),
                limit_s=resources.progress_deadline_s,
            )
        )
        said = bench.make_all_runs()
        signs.go_straight()
        headway.enter("writing down what it has to tell", LAST_WORD_S)
        told = spool.flush(LAST_WORD_S)
        headway.enter("the wait for all ranks to have written theirs")
        unwritten = [each for each in ranks.everyone.gather(told) if each is not None]
        if unwritten:
            raise SpoolError("; ".join(dict.fromkeys(unwritten)))
        spool.close()
        headway.enter("the delivery of its node's events", DELIVERY_S)
        delivered = agent is None or agent.finish(LAST_WORD_S)
        headway.enter("the wait for all nodes to have delivered theirs")
        delivered = ranks.everyone.agree(delivered)
        if rank == 0:
            headway.enter("the last word", LAST_WORD_S)
            informed = job if agent is None else job.knowing(agent.urls)
            delivered = _last_word(informed, assignment, said, pulse.close) and delivered
        headway.enter("the wait for the last word")
        return ranks.everyone.agree(delivered)


def join_the_others(rank: int, world_size: int) -> AbstractContextManager[None]:
    """Joins the other ranks of the worker group, for as long as it lives."""
    host = ray.util.get_node_ip_address()
    use_interface_of(host)
    store = meet(rank, host, ray.train.collective.broadcast_from_rank_zero, COMPUTE_TIMEOUT)
    return joined(rank, world_size, store, COMPUTE_TIMEOUT)


def _stuck(told: str) -> ExperimentFinished:
    return ExperimentFinished(outcome="failed", reason=Reason.NO_PROGRESS, message=told)


def _last_word(
    job: JobEnvironment, assignment: Assignment, said: str | None, silence: Callable[[], object]
) -> bool:
    """Says that all runs were made, once everything else has been delivered; whether the service has heard it.

    Ends the signs of life when it is only the service that is waited for: who can't hear the one can't hear the other.
    """
    folder = spool_folder(assignment.experiment_id, assignment.attempt, "end")
    with (
        Spool(folder, "end", assignment.experiment_id, assignment.attempt) as spool,
        Reporter(job, folder) as reporter,
    ):
        spool.emit(ExperimentFinished(outcome="succeeded", message=said))
        written = spool.flush(LAST_WORD_S) is None
        silence()
        delivered = written and reporter.drain(LAST_WORD_S)
    if delivered:
        remove_spool(folder)
    return delivered
