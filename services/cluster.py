"""The only file that speaks to Ray: its jobs and nodes over HTTP, with a timeout on every request.

Ray's own `JobSubmissionClient` connects in its constructor, has no timeouts and costs a second of imports;
the REST interface beneath it is documented and stable, so this uses that. Nothing that a caller of
Ghostwatt sends reaches an entrypoint or a runtime_env: both are built from settings and ids alone.

ClusterError              Ray answered, but not as it should (wrong token, an answer that can't be read)
|-- ClusterRefused        Ray has looked at the request and will not have it, now or later
|-- ClusterUnreachable    no answer of Ray's at all
`-- RayHeadError          a head of the service's own did not come up (`ray_head.py`)
"""

import json
import shlex
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal, Self, cast, get_args

from phantom_core.checks import Capacity
from services.log_parts import EMPTY, LogPart, end_of_json
from services.scrubbing import excerpt

if TYPE_CHECKING:
    import httpx

JobState = Literal["PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"]
FINAL_STATES: frozenset[str] = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})
REQUEST_TIMEOUT_S = 10.0
MOST_BYTES = 64 * 2**20
"""Longest answer that is read; a job's log may be longer, of which only the end is kept."""
MOST_QUOTED = 1_000
"""Characters of an answer that a message quotes."""
MOST_LOG_BYTES = 8 * 2**20
NODE_CONNECT_S = 2.0
"""Seconds in which a node must take a connection: it may be behind a wall that lets nothing through."""
NODE_AGAIN_S = 60.0
"""Seconds after which a node that didn't give a log is asked again."""
BAD_GATEWAY = frozenset({502, 503, 504})
"""What proxies say while the server behind them is away."""


class ClusterError(Exception):
    """Ray refused or failed; the message holds its answer."""


class ClusterRefused(ClusterError):
    """Ray will not have this request, however often it is made."""


class ClusterUnreachable(ClusterError):
    """No answer: nothing is known about the job, so nothing about it may be changed."""


@dataclass(frozen=True)
class Answer:
    """What came back for one request."""

    status_code: int
    """HTTP status."""
    text: str
    """The whole body."""
    truncated: bool = False
    """Whether there was more than `MOST_BYTES`."""


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
        """Args.

        address: The dashboard's address, such as `http://127.0.0.1:8265`.
        token: Ray's authentication token; None if the cluster has none.
        timeout_s: Longest wait for one answer, from its first byte to its last.

        Raises:
            ClusterError: The address is not one of a job server.
        """
        self.address = address.rstrip("/")
        if not self.address.startswith(("http://", "https://")):
            raise ClusterError(
                f"ray_address = {address!r} is no address of Ray's job server; give its dashboard's, "
                "such as http://head:8265"
            )
        self._timeout_s = timeout_s
        self._asked_again_s: dict[str, float] = {}
        """By a node's address, when it is asked for logs again after it gave none."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # Here and not above: it costs a tenth of the service's start, and is not needed before the first answer.
        import httpx

        # Reading the system's certificates takes longer than the first look at the cluster; http needs none of them.
        certificates = self.address.startswith("https://") or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # A proxy from the environment is for the outside world, not for the cluster.
        self._client = httpx.Client(
            base_url=self.address, headers=headers, timeout=timeout_s, trust_env=False, verify=certificates
        )

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
            ClusterUnreachable: No answer, or one that is not Ray's.
        """
        answer = self._send("GET", f"/api/jobs/{job_id}")
        if self._unknown(answer, job_id):
            return None
        told = self._parsed(answer)
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
        answer = self._send("POST", f"/api/jobs/{job_id}/stop")
        if not self._unknown(answer, job_id):
            self._parsed(answer)

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
        answer = self._send("GET", f"/api/jobs/{job_id}")
        if self._unknown(answer, job_id):
            return None
        node = self._parsed(answer).get("driver_agent_http_address")
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
        timeout = httpx.Timeout(self._timeout_s, connect=min(NODE_CONNECT_S, self._timeout_s))
        try:
            with self._answering("HEAD", url, timeout=timeout) as (head, _):
                if head.status_code == HTTPStatus.NOT_FOUND:
                    return EMPTY
                end_byte = int(head.headers["Content-Length"]) if head.is_success else None
            if end_byte is not None:
                begin = min(max(first_byte, end_byte - most), end_byte)
                if begin == end_byte:
                    return LogPart(end_byte, b"")
                piece = {"Range": f"bytes={begin}-{end_byte - 1}", "Accept-Encoding": "identity"}
                with self._answering("GET", url, timeout=timeout, headers=piece) as (answer, chunks):
                    if answer.status_code == HTTPStatus.PARTIAL_CONTENT:
                        return LogPart(begin, b"".join(chunks))
        except (ClusterUnreachable, KeyError, ValueError):
            pass
        self._asked_again_s[node] = time.monotonic() + NODE_AGAIN_S
        return None

    def _whole_log(self, job_id: str, first_byte: int, most: int) -> LogPart:
        with self._answering("GET", f"/api/jobs/{job_id}/logs") as (answer, chunks):
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
        told = self._request("GET", "/api/v0/nodes", params={"detail": "true"})
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
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _send(self, method: str, path: str, **options: Any) -> Answer:
        body = bytearray()
        with self._answering(method, path, **options) as (answer, chunks):
            for chunk in chunks:
                body += chunk
                if len(body) > MOST_BYTES:
                    break
        text = bytes(body[:MOST_BYTES]).decode(errors="replace")
        return Answer(answer.status_code, text, truncated=len(body) > MOST_BYTES)

    @contextmanager
    def _answering(
        self, method: str, path: str, **options: Any
    ) -> Iterator[tuple["httpx.Response", Iterator[bytes]]]:
        """The answer and its body, as it comes; who reads it is kept to the time for one answer.

        Raises:
            ClusterUnreachable: No answer, or one that did not come to its end in time.
        """
        import httpx

        try:
            with self._client.stream(method, path, **options) as response:
                if response.status_code in BAD_GATEWAY:
                    raise ClusterUnreachable(
                        f"nothing answers behind {self.address} ({response.status_code})"
                    )
                yield response, self._in_time(response.iter_bytes())
        except httpx.HTTPError as error:
            raise ClusterUnreachable(
                f"Ray's job server at {self.address} does not answer: {type(error).__name__}: {error}"
            ) from error
        except RuntimeError as error:
            if not self._client.is_closed:
                raise
            raise ClusterUnreachable(f"the connection to {self.address} was given up meanwhile") from error

    def _in_time(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Timeouts of httpx are for one read each, so an answer that trickles would never end."""
        end_at = time.monotonic() + self._timeout_s
        for chunk in chunks:
            yield chunk
            if time.monotonic() > end_at:
                raise ClusterUnreachable(
                    f"Ray's job server at {self.address} did not finish its answer within {self._timeout_s:g} s"
                )

    def _unknown(self, answer: Answer, job_id: str) -> bool:
        """Whether Ray does not know the job: it names it then, unlike a proxy that knows no such page."""
        if answer.status_code != HTTPStatus.NOT_FOUND:
            return False
        if job_id not in answer.text:
            raise ClusterUnreachable(f"what answers at {self.address} (404) is not Ray's job server")
        return True

    def _request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        return self._parsed(self._send(method, path, **options))

    def _parsed(self, answer: Answer) -> dict[str, Any]:
        if answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise ClusterError(
                f"Ray at {self.address} refuses the token ({answer.status_code}); "
                "give the cluster's own in RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
            )
        if answer.status_code in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY):
            raise ClusterRefused(f"Ray refuses the request: {_quoted(answer)}")
        if not 200 <= answer.status_code < 300:
            raise ClusterError(f"Ray answered {answer.status_code}: {_quoted(answer)}")
        if answer.truncated:
            raise ClusterError(f"Ray's answer is longer than {MOST_BYTES // 2**20} MiB")
        try:
            told = json.loads(answer.text)
        except ValueError as error:
            raise ClusterError(f"Ray's answer is no JSON: {_quoted(answer, 200)!r}") from error
        if not isinstance(told, dict):
            raise ClusterError(f"Ray's answer is no object: {_quoted(answer, 200)!r}")
        return told


class AbsentCluster(Cluster):
    """In place of a cluster that is not there (yet): no request gets an answer."""

    def __init__(self, why: str) -> None:
        """Args: why there is none, in one sentence."""
        # Not as a cluster begins: there is nothing to hold connections to.
        self.address = "http://absent.invalid"
        self._why = why

    def close(self) -> None:
        """Nothing is open."""

    def _send(self, method: str, path: str, **_options: Any) -> Answer:
        raise ClusterUnreachable(f"no {method} {path}: {self._why}")


def _quoted(answer: Answer, most: int = MOST_QUOTED) -> str:
    return storable(excerpt(answer.text, most))


def storable(text: str) -> str:
    """Text that every database takes: a log may hold anything, NUL and half characters too."""
    return text.replace("\x00", "\ufffd").encode(errors="replace").decode()
