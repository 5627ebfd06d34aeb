"""Requests to Ray's job server over HTTP, with a timeout on every one; what is asked for is `cluster.py`'s.

Ray's own `JobSubmissionClient` connects in its constructor, has no timeouts and costs a second of imports;
the REST interface beneath it is documented and stable, so this uses that.

ClusterError              Ray answered, but not as it should (wrong token, an answer that can't be read)
|-- ClusterRefused        Ray has looked at the request and will not have it, now or later
|-- ClusterUnreachable    no answer of Ray's at all
`-- RayHeadError          a head of the service's own did not come up (`ray_head.py`)
"""

import json
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from services.scrubbing import excerpt
from services.texts import storable

if TYPE_CHECKING:
    import httpx

REQUEST_TIMEOUT_S = 10.0
MOST_BYTES = 64 * 2**20
"""Longest answer that is read whole."""
MOST_QUOTED = 1_000
"""Characters of an answer that a message quotes."""
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


class RayRequests:
    """Connections to one job server and to the nodes that it names."""

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
        self.timeout_s = timeout_s
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # Here and not above: it costs a tenth of the service's start, and is not needed before the first answer.
        import httpx

        # Reading the system's certificates takes longer than the first look at the cluster; http needs none of them.
        certificates = self.address.startswith("https://") or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # A proxy from the environment is for the outside world, not for the cluster.
        self._client = httpx.Client(
            base_url=self.address, headers=headers, timeout=timeout_s, trust_env=False, verify=certificates
        )

    def ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """The object in the answer to a request; `options` are httpx's.

        Raises:
            ClusterError: Ray refused or failed to answer properly.
            ClusterUnreachable: No answer, or one that is not Ray's.
        """
        return self._parsed(self._send(method, path, **options))

    def ask_of_job(self, method: str, job_id: str, action: str = "") -> dict[str, Any] | None:
        """The same of a job; None if Ray does not know it.

        Raises:
            ClusterError: Ray failed to answer properly.
            ClusterUnreachable: No answer, or one that is not Ray's.
        """
        answer = self._send(method, f"/api/jobs/{job_id}{action}")
        # Ray names the job that it does not know, unlike a proxy that knows no such page.
        if answer.status_code == HTTPStatus.NOT_FOUND:
            if job_id not in answer.text:
                raise ClusterUnreachable(f"what answers at {self.address} (404) is not Ray's job server")
            return None
        return self._parsed(answer)

    def _send(self, method: str, path: str, **options: Any) -> Answer:
        """The answer to a request, whatever it says.

        Raises:
            ClusterUnreachable: No answer, or one that did not come to its end in time.
        """
        body = bytearray()
        with self.answering(method, path, **options) as (answer, chunks):
            for chunk in chunks:
                body += chunk
                if len(body) > MOST_BYTES:
                    break
        text = bytes(body[:MOST_BYTES]).decode(errors="replace")
        return Answer(answer.status_code, text, truncated=len(body) > MOST_BYTES)

    @contextmanager
    def answering(
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
        end_at = time.monotonic() + self.timeout_s
        for chunk in chunks:
            yield chunk
            if time.monotonic() > end_at:
                raise ClusterUnreachable(
                    f"Ray's job server at {self.address} did not finish its answer within {self.timeout_s:g} s"
                )

    def _parsed(self, answer: Answer) -> dict[str, Any]:
        """The object that an answer holds.

        Raises:
            ClusterError: It is none, or tells of a refusal or failure.
        """
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

    def close(self) -> None:
        """Closes connections."""
        self._client.close()


class NoRequests(RayRequests):
    """In place of a server that is not there (yet): no request gets an answer."""

    def __init__(self, why: str) -> None:
        """Args: why there is none, in one sentence."""
        # Not as requests begin: there is nothing to hold connections to.
        self.address = "http://absent.invalid"
        self._why = why

    def close(self) -> None:
        """Nothing is open."""

    def _send(self, method: str, path: str, **_options: Any) -> Answer:
        """Raises: ClusterUnreachable: always, with the reason."""
        raise ClusterUnreachable(f"no {method} {path}: {self._why}")


def _quoted(answer: Answer, most: int = MOST_QUOTED) -> str:
    return storable(excerpt(answer.text, most))
