"""The sampler as a Ray actor, seen from the rank that looks after it: the first of its node."""

import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ray
from pydantic import TypeAdapter
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from phantom_core.known_process import KnownProcess
from phantom_core.meters.choose import MeterRequest
from phantom_core.protocol import Assignment
from ray_jobs.environment import JobEnvironment
from ray_jobs.outliving import Outliving
from ray_jobs.sampler import Sampler
from ray_jobs.spool import remove_spool, spool_folder

log = logging.getLogger(__name__)

MAX_RESTARTS = 100
BEREFT_WORD_S = 60.0
"""Seconds that a sampler whose ranks are gone tries to deliver what they left."""


@dataclass(frozen=True)
class SamplingTask:
    """What the sampler is to do for one experiment."""

    job: JobEnvironment
    """The service to deliver to."""
    assignment: Assignment
    """The experiment, its attempt and the sample rate."""
    folder: Path
    """Spool of this node's ranks."""
    requests: tuple[MeterRequest, ...]
    """The devices of this node's ranks, each with the pid of its rank."""


_TASK: TypeAdapter[SamplingTask] = TypeAdapter(SamplingTask)


class SamplerActor:
    """Runs a `Sampler` for one experiment after the other, in a process of its own.

    What it is doing is kept in a file, by which it goes on where Ray has started it again.
    """

    def __init__(self, desk: str, starter: KnownProcess) -> None:
        """Args: the folder for that file, the rank that started it."""
        self._task_file = Path(desk) / "task.json"
        self._sampler: Sampler | None = None
        self._ranks: frozenset[int] = frozenset()
        self._ending = threading.Lock()
        if self._task_file.exists():
            self._sample(_TASK.validate_json(self._task_file.read_bytes()))
        self._outliving = Outliving(starter, lambda: self._ranks, self._leave)

    def begin(self, task: SamplingTask) -> None:
        """Starts sampling, and delivering what the node's ranks spool."""
        descriptor = os.open(self._task_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_TASK.dump_json(task))
        self._sample(task)

    def process_id(self) -> int:
        """The actor's process."""
        return os.getpid()

    def finish(self, deadline_s: float) -> tuple[bool, tuple[str, ...]]:
        """Stops sampling and delivers what is spooled.

        Returns:
            Whether the service has all of it; at which addresses services are known by now.
        """
        with self._ending:  # a rank may be killed while it waits for this
            sampler, self._sampler = self._sampler, None
            delivered = sampler is None or sampler.finish(deadline_s)
            self._task_file.unlink(missing_ok=True)
        return delivered, () if sampler is None else sampler.urls

    def _leave(self) -> None:
        """Tells what the ranks left behind, and ends this process for good."""
        try:
            delivered, _ = self.finish(BEREFT_WORD_S)
            if not delivered:
                log.warning(
                    "the ranks are gone; some of their events were not delivered and stay in the spool"
                )
        except Exception:
            log.exception("the ranks are gone, and what they left could not be told")
        finally:
            # Whatever happened: nobody else ends this process.
            remove_spool(self._task_file.parent)
            ray.kill(ray.get_runtime_context().current_actor)

    def _sample(self, task: SamplingTask) -> None:
        self._ranks = frozenset(request.pid for request in task.requests if request.pid is not None)
        self._sampler = Sampler(
            task.job, task.assignment, task.folder, task.requests, _count_start(task.folder)
        )


class NodeAgent:
    """A node's sampler, for as long as the worker group lives."""

    def __init__(self, actor: "ray.actor.ActorHandle", desk: Path) -> None:
        """Args: the actor, its folder."""
        self._actor = actor
        self._desk = desk
        self._samples = False
        self.urls: tuple[str, ...] = ()
        """Addresses of services, as the sampler knew them when it finished last."""

    def begin(
        self,
        job: JobEnvironment,
        assignment: Assignment,
        folder: Path,
        requests: Sequence[MeterRequest],
        deadline_s: float,
    ) -> bool:
        """Has it sample for an experiment.

        Args:
            job: The service to deliver to.
            assignment: The experiment.
            folder: Spool of this node's ranks.
            requests: The devices of this node's ranks, each with the pid of its rank.
            deadline_s: Seconds that it may take to begin.

        Returns:
            Whether it did; without it there are no power samples, but everything else goes on.
        """
        self._samples = True
        try:
            task = SamplingTask(job, assignment, folder, tuple(requests))
            ray.get(self._actor.begin.remote(task), timeout=deadline_s)
        except Exception as error:
            log.warning("no power sampler: %s: %s", type(error).__name__, error)
            return False
        return True

    def finish(self, deadline_s: float) -> bool:
        """Has everything delivered; once more does nothing. Never raises: what is left stays on disk.

        Returns:
            Whether the service has all of it.
        """
        if not self._samples:
            return True
        self._samples = False
        try:
            delivered, self.urls = ray.get(self._actor.finish.remote(deadline_s), timeout=deadline_s + 30)
        except Exception as error:
            log.warning("the sampler did not end well: %s: %s", type(error).__name__, error)
            return False
        if not delivered:
            log.warning("some events were not delivered and stay in the spool")
        return bool(delivered)

    def stop(self) -> None:
        """Ends the actor. Never raises."""
        try:
            ray.kill(self._actor)
        except Exception as error:
            log.warning("the sampler's actor was not ended: %s: %s", type(error).__name__, error)
        remove_spool(self._desk)


def start_node_agent(group_id: str) -> NodeAgent:
    """Starts the sampler's process on this node, without waiting; it ends soon after the rank that started it.

    Args:
        group_id: The worker group.
    """
    node = ray.get_runtime_context().get_node_id()
    actor_class = ray.remote(SamplerActor).options(
        name=f"sampler-{group_id}-{node}",
        lifetime="detached",  # see `ray_jobs.outliving`
        num_cpus=0,
        num_gpus=0,
        max_restarts=MAX_RESTARTS,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    )
    desk = spool_folder(group_id, 0, "sampler")
    return NodeAgent(actor_class.remote(str(desk), KnownProcess.of(os.getpid())), desk)


def _count_start(folder: Path) -> int:
    """How often the sampler of this folder was started before."""
    start = 0
    while True:
        try:
            (folder / f"sampler-start-{start}").touch(exist_ok=False)
            return start
        except FileExistsError:
            start += 1
