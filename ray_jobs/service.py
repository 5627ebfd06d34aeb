"""The service as a job reaches it: whichever of its processes answers, the one that did so last first.

All processes of one database take the same token and know the same. The token is sent to the addresses that the service
itself has told, and to no other: redirections are not followed.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Self

import httpx
from pydantic import ValidationError

from phantom_core.protocol import ServiceAddresses
from ray_jobs.environment import addresses

CONNECT_S = 5.0
"""Seconds in which a process must take a connection before the next one is tried."""
REFUSALS = frozenset({401, 403, 404, 410})
"""Answers after which nothing will ever be taken: the token is void or the experiment gone."""
_AWAY = frozenset({502, 503, 504})
"""What is said where the service, or its database, can't be reached."""


class Service:
    """Requests with one token; a context manager, and for one thread."""

    def __init__(self, urls: Sequence[str], token: str, timeout_s: float) -> None:
        """Args: base addresses, that of the job's own service first; the token; seconds that an answer may take."""
        self._own, self._urls = urls[0], tuple(urls)
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
            follow_redirects=False,
        )

    @property
    def urls(self) -> tuple[str, ...]:
        """All known addresses, the one that answered last first."""
        return self._urls

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Asks one process after the other until one takes the request.

        Args:
            method: HTTP's.
            path: Below the base address.
            options: As `httpx.Client.request` takes them.

        Returns:
            The first answer that is neither a refusal nor says that something is away; else one that says so; a
            refusal only if every address refuses: at that of a process that is gone anybody may listen by now.

        Raises:
            httpx.HTTPError: None answered, but for refusals.
        """
        refused = away = None
        error: httpx.TransportError | None = None
        for url in self._urls:
            try:
                response = self._client.request(method, url + path, **options)
            except httpx.TransportError as raised:
                error = raised
                continue
            except httpx.InvalidURL as raised:
                error = httpx.UnsupportedProtocol(f"{url}: {raised}")
                continue
            if response.status_code in REFUSALS:
                refused = response
            elif response.status_code in _AWAY:
                away = response
            else:
                self._urls = (url, *(each for each in self._urls if each != url))
                return response
        if away is not None:
            return away
        if error is not None:
            raise error
        assert refused is not None, "there is at least one address"
        return refused

    def learn(self, urls: Iterable[str]) -> None:
        """Adds addresses that the service has told; those known before stay, since a process may come back to one."""
        known = addresses(self._own, urls, self._urls)
        self._urls = tuple(sorted(known, key=lambda url: url != self._urls[0]))

    def refresh(self) -> None:
        """Asks for the addresses of the processes that live now. Never raises: it goes on with those that it knows."""
        try:
            response = self.request("GET", "/internal/v1/services")
            if response.status_code == httpx.codes.OK:
                self.learn(ServiceAddresses.model_validate_json(response.content).urls)
        except (httpx.HTTPError, ValidationError):
            return

    def close(self) -> None:
        """Closes connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
