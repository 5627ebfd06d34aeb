"""What Ray Train calls on every rank. Torch-free at import: driver and controller load this file too."""

from typing import TYPE_CHECKING, Any, Literal

import ray.train
import ray.train.collective

from phantom_core.protocol import JOB_LOG_LINE, Assignment
from ray_jobs.environment import GroupEnvironment, JobEnvironment
from ray_jobs.group import next_job
from ray_jobs.reporter import fetch_assignment

if TYPE_CHECKING:
    from ray_jobs.node_agent import NodeAgent


def rank_main(config: dict[str, Any]) -> None:
    """Makes all runs of the assignment as one rank, then those of every experiment that the service has next.

    Args:
        config: `job` and `group` (the job's environment variables), `assignment` (its JSON), `use_gpu`.
    """
    from ray_jobs.node_agent import start_node_agent

    group = GroupEnvironment.read(config["group"])
    context = ray.train.get_context()
    # The sampler's process starts while this one loads PyTorch.
    agent = start_node_agent(group.group_id) if context.get_local_rank() == 0 else None
    try:
        _make_experiments(
            group,
            JobEnvironment.read(config["job"]),
            Assignment.model_validate_json(config["assignment"]),
            use_gpu=config["use_gpu"],
            agent=agent,
        )
    finally:
        if agent is not None:
            agent.stop()


def _make_experiments(
    group: GroupEnvironment,
    job: JobEnvironment,
    assignment: Assignment,
    *,
    use_gpu: bool,
    agent: "NodeAgent | None",
) -> None:
    from ray_jobs.between import leaving_no_trace
    from ray_jobs.devices import device_of_rank
    from ray_jobs.ranks import Arenas
    from ray_jobs.worker import join_the_others, work

    context = ray.train.get_context()
    rank = context.get_world_rank()
    device = device_of_rank(use_gpu)
    arenas = Arenas(device)
    with join_the_others(rank, context.get_world_size()):
        while True:
            if rank == 0:
                print(f"{JOB_LOG_LINE}{assignment.experiment_id}, attempt {assignment.attempt}", flush=True)
            with leaving_no_trace(device):
                delivered = work(job, assignment, device=device, arenas=arenas, agent=agent)
            group = group.knowing(job.urls).knowing(() if agent is None else agent.urls)
            following = _next(group, assignment.experiment_id, "cuda" if use_gpu else "cpu", rank, delivered)
            if following is None:
                return
            assignment = fetch_assignment(following)
            job = following.knowing(assignment.service_urls)


def _next(
    group: GroupEnvironment, finished: str, device: Literal["cuda", "cpu"], rank: int, delivered: bool
) -> JobEnvironment | None:
    """What rank 0 was told to make, on every rank; they wait for it in Ray, without a process group or the device."""
    job = next_job(group, finished, device) if rank == 0 and delivered else None
    told: dict[str, str] | None = ray.train.collective.broadcast_from_rank_zero(
        job.variables() if job else None
    )
    return JobEnvironment.read(told) if told else None
