"""The only file that speaks to Ray: its jobs and nodes over HTTP, with a timeout on every request.

Ray's own `JobSubmissionClient` connects in its constructor, has no timeouts and costs a second of imports;
the REST interface beneath it is documented and stable, so this uses that. Nothing that a caller of
Ghostwatt sends reaches an entrypoint or a runtime_env: both are built from settings and ids alone.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import httpx

from phantom_core.checks import Capacity

JobState = Literal["PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"]
FINAL_STATES: frozenset[str] = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})
REQUEST_TIMEOUT_S = 10.0
LOG_TAIL_CHARACTERS = 2_000


class ClusterError(Exception):
    """Ray refused or failed; the message holds its answer."""


class ClusterUnreachable(ClusterError):
    """No answer: nothing is known about the job, so nothing about it may be changed."""


@dataclass(frozen=True)
class JobStatus:
    """What Ray says of a job."""

    state: JobState
    """Ray's word; `RUNNING` does not mean that a worker group exists."""
    message: str
    """Ray's explanation, possibly long."""


class Cluster:
    """One Ray cluster's job server; a context manager."""

    def __init__(self, address: str, token: str | None, *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        """Args.

        address: The dashboard's address, such as `http://127.0.0.1:8265`.
        token: Ray's authentication token; None if the cluster has none.
        timeout_s: Longest wait for one answer.
        """
        self.address = address.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # A proxy from the environment is for the outside world, not for the cluster.
        self._client = httpx.Client(
            base_url=self.address, headers=headers, timeout=timeout_s, trust_env=False
        )

    def submit(self, job_id: str, *, python: str, environment: Mapping[str, str], name: str) -> None:
        """Starts the job of an experiment.

        Args:
            job_id: The job's submission id.
            python: Absolute path of the interpreter that has Ghostwatt on the cluster's machines.
            environment: The job's own variables (address, id, token).
            name: The experiment's name, for the dashboard; metadata only.

        Raises:
            ClusterError: Ray refused. The id may be in use all the same: look it up before trying again.
            ClusterUnreachable: No answer; likewise.
        """
        self._request(
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
            ClusterUnreachable: No answer.
        """
        response = self._send("GET", f"/api/jobs/{job_id}")
        if response.status_code == httpx.codes.NOT_FOUND:
            return None
        answer = self._parsed(response)
        return JobStatus(state=answer["status"], message=str(answer.get("message") or ""))

    def stop(self, job_id: str) -> None:
        """Asks Ray to stop a job; it ends seconds later, and a job that has ended is left alone.

        Raises:
            ClusterUnreachable: No answer.
        """
        response = self._send("POST", f"/api/jobs/{job_id}/stop")
        if response.status_code not in (httpx.codes.OK, httpx.codes.NOT_FOUND):
            self._parsed(response)

    def log_tail(self, job_id: str) -> str:
        """The last lines that a job's driver printed; empty if they can't be had."""
        try:
            answer = self._parsed(self._send("GET", f"/api/jobs/{job_id}/logs"))
        except ClusterError:
            return ""
        return str(answer.get("logs") or "")[-LOG_TAIL_CHARACTERS:]

    def capacity(self) -> Capacity:
        """What all nodes that are alive have together.

        Raises:
            ClusterError: Ray refused or failed to answer properly.
            ClusterUnreachable: No answer.
        """
        answer = self._request("GET", "/api/v0/nodes", params={"detail": "true"})
        nodes = answer["data"]["result"]["result"]
        alive = [node.get("resources_total") or {} for node in nodes if node.get("state") == "ALIVE"]

        def total(resource: str) -> float:
            return sum(float(node.get(resource, 0)) for node in alive)

        return Capacity(
            cpus=total("CPU"),
            gpus=int(total("GPU")),
            gpu_memory_bytes=None,
            cpu_memory_bytes=int(total("memory")) or None,
        )

    def dashboard_url(self, job_id: str) -> str:
        """Where Ray's dashboard shows the job."""
        return f"{self.address}/#/jobs/{job_id}"

    def close(self) -> None:
        """Closes connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self._client.request(method, path, **options)
        except httpx.HTTPError as error:
            raise ClusterUnreachable(
                f"Ray's job server at {self.address} does not answer: {type(error).__name__}: {error}"
            ) from error

    def _request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        return self._parsed(self._send(method, path, **options))

    def _parsed(self, response: httpx.Response) -> dict[str, Any]:
        if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise ClusterError(
                f"Ray at {self.address} refuses the token ({response.status_code}); "
                "give the cluster's own in RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
            )
        if not response.is_success:
            raise ClusterError(f"Ray answered {response.status_code}: {response.text[:1000]}")
        try:
            answer = response.json()
        except ValueError as error:
            raise ClusterError(f"Ray's answer is no JSON: {response.text[:200]!r}") from error
        if not isinstance(answer, dict):
            raise ClusterError(f"Ray's answer is no object: {response.text[:200]!r}")
        return answer
