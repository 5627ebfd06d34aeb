"""The sampler as a Ray actor, seen from the rank that looks after it: the first of its node."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from phantom_core.meters.choose import MeterRequest
from phantom_core.protocol import Assignment
from ray_jobs.environment import JobEnvironment

log = logging.getLogger(__name__)

MAX_RESTARTS = 100


class SamplerActor:
    """Runs a `Sampler` in a process of its own; made an actor by `start_node_agent`."""

    def __init__(
        self,
        job: JobEnvironment,
        assignment: str,
        folder: str,
        requests: Sequence[MeterRequest],
    ) -> None:
        """Args: as for `Sampler`, with the assignment as JSON and the folder as text."""
        from ray_jobs.sampler import Sampler

        start = _count_start(Path(folder))
        self._sampler = Sampler(
            job, Assignment.model_validate_json(assignment), Path(folder), requests, start
        )

    def process_id(self) -> int:
        """The actor's process; also tells that it is up."""
        return os.getpid()

    def finish(self, deadline_s: float) -> bool:
        """Stops sampling and delivers what is spooled; whether the service has all of it."""
        return self._sampler.finish(deadline_s)


class NodeAgent:
    """A node's running sampler."""

    def __init__(self, actor: "ray.actor.ActorHandle") -> None:
        """Args: the actor."""
        self._actor = actor

    def wait_until_up(self, deadline_s: float) -> bool:
        """Whether it came up in time; without it there are no power samples, but everything else goes on."""
        try:
            ray.get(self._actor.process_id.remote(), timeout=deadline_s)
        except Exception as error:
            log.warning("no power sampler: %s: %s", type(error).__name__, error)
            return False
        return True

    def stop(self, deadline_s: float) -> None:
        """Has everything delivered, then ends the actor. Never raises: what is left stays on disk."""
        try:
            if not ray.get(self._actor.finish.remote(deadline_s), timeout=deadline_s + 30):
                log.warning("some events were not delivered and stay in the spool")
        except Exception as error:
            log.warning("the sampler did not end well: %s: %s", type(error).__name__, error)
        try:
            ray.kill(self._actor)
        except Exception as error:
            log.warning("the sampler's actor was not ended: %s: %s", type(error).__name__, error)


def start_node_agent(
    job: JobEnvironment, assignment: Assignment, folder: Path, requests: Sequence[MeterRequest]
) -> NodeAgent:
    """Starts the sampler on this node; it ends with the rank that started it.

    Args:
        job: The service to deliver to.
        assignment: The experiment.
        folder: Spool of this node's ranks.
        requests: The devices of this node's ranks, each with the pid of its rank.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor_class = ray.remote(SamplerActor).options(
        num_cpus=0, num_gpus=0, max_restarts=MAX_RESTARTS, scheduling_strategy=here
    )
    return NodeAgent(actor_class.remote(job, assignment.model_dump_json(), str(folder), list(requests)))


def _count_start(folder: Path) -> int:
    """How often the sampler of this folder was started before."""
    start = 0
    while True:
        try:
            (folder / f"sampler-start-{start}").touch(exist_ok=False)
            return start
        except FileExistsError:
            start += 1
