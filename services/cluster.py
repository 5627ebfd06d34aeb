"""One Ray cluster: its jobs, their logs, its nodes. Nothing else of the service speaks to Ray.

Nothing that a caller of Ghostwatt sends reaches an entrypoint or a runtime_env: both are built from settings and ids
alone.
"""

import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal, Self, cast, get_args

from phantom_core.checks import Capacity
from services.log_parts import EMPTY, LogPart, end_of_json
from services.ray_requests import (
    REQUEST_TIMEOUT_S,
    ClusterError,
    ClusterUnreachable,
    NoRequests,
    RayRequests,
)
from services.texts import storable

JobState = Literal["PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"]
FINAL_STATES: frozenset[str] = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})
MOST_LOG_BYTES = 8 * 2**20
NODE_CONNECT_S = 2.0
"""Seconds in which a node must take a connection: it may be behind a wall that lets nothing through."""
NODE_AGAIN_S = 60.0
"""Seconds after which a node that didn't give a log is asked again."""


@dataclass(frozen=True)
class JobStatus:
    """What Ray says of a job."""

    state: JobState
    """Ray's word; `RUNNING` does not mean that a worker group exists."""
    message: str
    """Ray's explanation, possibly long; text that every database takes."""


class Cluster:
    """One Ray cluster's job server; a context manager."""

    def __init__(self, address: str, token: str | None, *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        """Args and errors: as of `RayRequests`."""
        self._use(RayRequests(address, token, timeout_s=timeout_s))

    def _use(self, requests: RayRequests) -> None:
        self._requests = requests
        self.address = requests.address
        self._asked_again_s: dict[str, float] = {}
        """By a node's address, when it is asked for logs again after it gave none."""

    def submit(self, job_id: str, *, python: str, environment: Mapping[str, str], name: str) -> None:
        """Starts the job of an experiment.

        Args:
            job_id: The job's submission id.
            python: Absolute path of the interpreter that has Ghostwatt on the cluster's machines.
            environment: The job's own variables (address, id, token).
            name: The experiment's name, for the dashboard; metadata only.

        Raises:
            ClusterError: Ray refused or failed. The id may be in use all the same: look it up before trying
                again.
            ClusterUnreachable: No answer; likewise.
        """
        self._requests.ask(
            "POST",
            "/api/jobs/",
            json={
                "submission_id": job_id,
                "entrypoint": f"exec {shlex.quote(python)} -m ray_jobs.experiment",
                "runtime_env": {"env_vars": dict(environment)},
                "metadata": {"job_name": name, "experiment_id": job_id},
            },
        )

    def status(self, job_id: str) -> JobStatus | None:
        """What Ray says of a job; None if it does not know the id.

        Raises:
            ClusterError: Ray failed to answer properly.
            ClusterUnreachable: No answer, or one that is not Ray's.
        """
        told = self._requests.ask_of_job("GET", job_id)
        if told is None:
            return None
        state = told.get("status")
        if state not in get_args(JobState):
            raise ClusterError(f"Ray says that job {job_id} is {state!r}, which is none of its states")
        return JobStatus(state=cast(JobState, state), message=storable(str(told.get("message") or "")))

    def stop(self, job_id: str) -> None:
        """Asks Ray to stop a job; it ends seconds later, and a job that has ended is left alone.

        Raises:
            ClusterError: Ray failed to answer properly.
            ClusterUnreachable: No answer, or one that is not Ray's.
        """
        self._requests.ask_of_job("POST", job_id, "/stop")

    def log(self, job_id: str, first_byte: int = 0, most: int = MOST_LOG_BYTES) -> LogPart | None:
        """The end of what a job's driver printed so far, however much that is.

        Asked of the job's own node, which gives any piece of a file at once; where that can't be reached, of the job
        server, which gives whole logs only.

        Args:
            job_id: The job's submission id.
            first_byte: What the log holds before is not wanted.
            most: Most bytes that are wanted.

        Returns:
            The last of what is wanted; None if Ray does not know the job.

        Raises:
            ClusterError: Ray failed to answer properly.
            ClusterUnreachable: No answer, or one that is not Ray's, or one that took too long.
        """
        told = self._requests.ask_of_job("GET", job_id)
        if told is None:
            return None
        node = told.get("driver_agent_http_address")
        # Whoever guards the job server by TLS would not have its token sent in the clear.
        if isinstance(node, str) and node.startswith("http://") and self.address.startswith("http://"):
            part = self._log_of_node(node, job_id, first_byte, most)
            if part is not None:
                return part
        return self._whole_log(job_id, first_byte, most)

    def _log_of_node(self, node: str, job_id: str, first_byte: int, most: int) -> LogPart | None:
        """None if the node does not give it."""
        if time.monotonic() < self._asked_again_s.get(node, 0.0):
            return None
        import httpx

        url = f"{node}/logs/job-driver-{job_id}.log"
        timeout = httpx.Timeout(
            self._requests.timeout_s, connect=min(NODE_CONNECT_S, self._requests.timeout_s)
        )
        try:
            with self._requests.answering("HEAD", url, timeout=timeout) as (head, _):
                if head.status_code == HTTPStatus.NOT_FOUND:
                    return EMPTY
                end_byte = int(head.headers["Content-Length"]) if head.is_success else None
            if end_byte is not None:
                begin = min(max(first_byte, end_byte - most), end_byte)
                if begin == end_byte:
                    return LogPart(end_byte, b"")
                piece = {"Range": f"bytes={begin}-{end_byte - 1}", "Accept-Encoding": "identity"}
                with self._requests.answering("GET", url, timeout=timeout, headers=piece) as (answer, chunks):
                    if answer.status_code == HTTPStatus.PARTIAL_CONTENT:
                        return LogPart(begin, b"".join(chunks))
        except (ClusterUnreachable, KeyError, ValueError):
            pass
        self._asked_again_s[node] = time.monotonic() + NODE_AGAIN_S
        return None

    def _whole_log(self, job_id: str, first_byte: int, most: int) -> LogPart:
        with self._requests.answering("GET", f"/api/jobs/{job_id}/logs") as (answer, chunks):
            part = end_of_json(chunks, first_byte, most) if answer.is_success else None
        if part is None:
            raise ClusterError(f"Ray answered {answer.status_code} without the log of job {job_id}")
        return part

    def capacity(self) -> Capacity:
        """What all nodes that are alive have together.

        Raises:
            ClusterError: Ray refused or failed to answer properly.
            ClusterUnreachable: No answer, or no node has reported yet: a head that was just restarted knows
                none, which says nothing of what the cluster has.
        """
        told = self._requests.ask("GET", "/api/v0/nodes", params={"detail": "true"})
        try:
            nodes = told["data"]["result"]["result"]
            alive = [node.get("resources_total") or {} for node in nodes if node["state"] == "ALIVE"]
            cpus, gpus, memory = (
                sum(float(node.get(resource, 0)) for node in alive) for resource in ("CPU", "GPU", "memory")
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ClusterError(f"Ray's list of nodes can't be read: {error!r}") from error
        if not alive:
            raise ClusterUnreachable(f"no node of the Ray cluster at {self.address} is alive")
        return Capacity(
            cpus=cpus, gpus=int(gpus), gpu_memory_bytes=None, cpu_memory_bytes=int(memory) or None
        )

    def dashboard_url(self, job_id: str) -> str:
        """Where Ray's dashboard shows the job."""
        return f"{self.address}/#/jobs/{job_id}"

    def close(self) -> None:
        """Closes connections."""
        self._requests.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class AbsentCluster(Cluster):
    """In place of a cluster that is not there (yet): no request gets an answer."""

    def __init__(self, why: str) -> None:
        """Args: why there is none, in one sentence."""
        self._use(NoRequests(why))
