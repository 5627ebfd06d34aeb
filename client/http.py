"""One request to the service: timeouts, retries of what is safe to repeat, and errors a person can act on."""

import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
from pydantic import ValidationError

from client.errors import BadSpec, GhostwattError, Refused, ServiceFailed, ServiceUnreachable
from client.models import Problem

CONNECT_S = 5.0
"""Longest wait for a connection."""
ANSWER_S = 30.0
"""Longest wait for the next byte of an answer."""
TRIES = 3
"""Times that a request which may be repeated is sent when the connection fails or the service is busy."""
PAUSE_S = 0.5
"""First pause between two tries; doubled each time, with some chance in it."""
RETRIED_STATUSES = frozenset({429, 503})
"""Answers that pass by themselves."""
RETRIED_CODES = frozenset({"request-in-flight"})
"""Problems that do, too: an earlier try of the same request, whose answer was lost, is still under way."""

BAD_SPEC_CODES = frozenset({"invalid-spec", "invalid-document", "unreadable-body", "empty-body"})
"""Problems that the author of a spec can mend."""


Parameter = str | int | Sequence[str] | None
"""A parameter of a query; a list is sent as one for each item."""


class Http:
    """A connection pool to one service; a context manager."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        answer_s: float = ANSWER_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Opens nothing yet.

        Args:
            url: Address of the service, `http://host:port`.
            api_key: Sent as a bearer token; None sends none.
            answer_s: Longest wait for the next byte of an answer, in seconds.
            transport: Replaces the network, for tests.

        Raises:
            GhostwattError: The URL is none, or holds credentials.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise GhostwattError(f"{url!r} is no address of a service; give one like http://127.0.0.1:8411")
        self.url = url.rstrip("/")
        headers = {"Accept": "application/json"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self._client = httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=httpx.Timeout(answer_s, connect=CONNECT_S),
            # A proxy of the environment can't reach this machine's loopback.
            trust_env=parts.hostname not in ("localhost", "127.0.0.1", "::1"),
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Parameter] | None = None,
        document: object = None,
        headers: Mapping[str, str] | None = None,
        accept_statuses: frozenset[int] = frozenset(),
        tries: int = TRIES,
    ) -> httpx.Response:
        """Sends a request and returns a success.

        Args:
            method: HTTP method; everything but POST, and POST with an Idempotency-Key, is sent again if the
                connection fails.
            path: Below the service's address.
            query: Parameters; None leaves one out.
            document: Body, as JSON; NaN and infinities are passed on for the service to refuse by name.
            headers: Besides the usual ones.
            accept_statuses: Statuses besides 2xx that are no error.
            tries: Times that it is sent at most.

        Raises:
            ServiceUnreachable: No answer.
            Refused: 4xx; `BadSpec` where the spec is what's wrong.
            ServiceFailed: 5xx, or an answer that isn't Ghostwatt's.
        """
        sent_headers = dict(headers or {})
        content = None
        if document is not None:
            content = json.dumps(document)
            sent_headers["Content-Type"] = "application/json"
        repeatable = method != "POST" or "Idempotency-Key" in sent_headers
        tries = tries if repeatable else 1
        parameters = {name: value for name, value in (query or {}).items() if value is not None}
        for attempt in range(1, tries + 1):
            try:
                response = self._client.request(
                    method, path, params=parameters, content=content, headers=sent_headers
                )
            except httpx.TransportError as error:
                if attempt == tries:
                    raise self._unreachable(error) from error
            else:
                if response.is_success or response.status_code in accept_statuses:
                    return response
                if attempt == tries or not _passes(response):
                    raise _error(response)
            time.sleep(PAUSE_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
        raise AssertionError("unreachable: the last try returns or raises")

    @contextmanager
    def stream(self, path: str, *, headers: Mapping[str, str], silence_s: float) -> Iterator[httpx.Response]:
        """Opens an answer that is read as it arrives; once, since only its reader knows where to go on.

        Args:
            path: Below the service's address.
            headers: Besides the usual ones.
            silence_s: Longest wait for the next byte, in seconds.

        Raises:
            ServiceUnreachable: No answer, or it broke off, also while it is read in the block.
            Refused: 4xx.
            ServiceFailed: 5xx, or an answer that isn't Ghostwatt's.
        """
        timeout = httpx.Timeout(silence_s, connect=CONNECT_S)
        try:
            with self._client.stream("GET", path, headers=headers, timeout=timeout) as response:
                if not response.is_success:
                    response.read()
                    raise _error(response)
                yield response
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx.TransportError) -> ServiceUnreachable:
        if isinstance(error, httpx.TimeoutException):
            return ServiceUnreachable(f"the service at {self.url} did not answer in time")
        return ServiceUnreachable(
            f"no service answers at {self.url} ({error}); start one with `ghostwatt serve`, or say where it "
            "is with --url or GHOSTWATT_URL"
        )


def _error(response: httpx.Response) -> GhostwattError:
    problem = _problem(response)
    if problem is None:
        return ServiceFailed(
            f"{response.request.url} answered {response.status_code} without a problem document; "
            "is that Ghostwatt?"
        )
    if problem.code in BAD_SPEC_CODES:
        return BadSpec(problem)
    if response.status_code < 500:
        return Refused(problem)
    return ServiceFailed(f"{problem.detail} (request {problem.request_id})")


def _passes(response: httpx.Response) -> bool:
    problem = _problem(response)
    return response.status_code in RETRIED_STATUSES or (problem is not None and problem.code in RETRIED_CODES)


def _problem(response: httpx.Response) -> Problem | None:
    if not response.headers.get("content-type", "").startswith("application/problem+json"):
        return None
    try:
        document: Any = response.json()
        return Problem.model_validate(document)
    except (ValueError, ValidationError):
        return None
