"""An experiment's events over any number of connections: each goes on where the last one stopped."""

from collections.abc import Iterator

import httpx
from pydantic import ValidationError

from client.errors import GhostwattError, Refused, ServiceFailed, ServiceUnreachable
from client.event_stream import EventParser
from client.http import Http
from client.models import Occurrence

SILENCE_S = 45.0
"""Longest silence on a stream; the service sends a heartbeat every 15 s."""
RECONNECT_S = 1.0
"""Seconds before a broken stream is opened again."""


class NoEvents(Exception):
    """The service gives no stream: it has too many, or it is older than they are. Ask it instead."""

    def __init__(self, cause: GhostwattError) -> None:
        super().__init__(str(cause))
        self.cause = cause
        """What it said."""


class EventFeed:
    """One experiment's events."""

    def __init__(self, http: Http, path: str, *, after: int | None = None) -> None:
        """Args: the connections, where the stream is, the id of the last occurrence that is known."""
        self._http = http
        self._path = path
        self._after = "" if after is None else str(after)
        self.ended = False
        """Whether nothing more will come."""

    def bursts(self, timeout_s: float | None) -> Iterator[tuple[Occurrence, ...]]:
        """What arrives on one connection, as it arrives; a heartbeat is an empty burst.

        Args:
            timeout_s: Longest silence that is borne, in seconds; None leaves it to the usual limit.

        Raises:
            ServiceUnreachable: It broke off.
            NoEvents: There is no stream to be had.
        """
        headers = {"Accept": "text/event-stream"}
        if self._after:
            headers["Last-Event-ID"] = self._after
        silence_s = SILENCE_S if timeout_s is None else min(SILENCE_S, max(timeout_s, 0.1))
        try:
            with self._http.stream(self._path, headers=headers, silence_s=silence_s) as response:
                if response.status_code == httpx.codes.NO_CONTENT:
                    self.ended = True
                    yield ()
                    return
                yield from self._read(response)
        except (Refused, ServiceFailed) as error:
            raise NoEvents(error) from error

    def occurrences(self) -> Iterator[Occurrence]:
        """Everything to the end, over as many connections as the service ends in good order.

        Raises:
            ServiceUnreachable: The stream broke off; the last `id` that came takes it up again.
            GhostwattError: The service gives no stream.
        """
        while not self.ended:
            try:
                for burst in self.bursts(None):
                    yield from burst
            except NoEvents as error:
                raise error.cause from error

    def _read(self, response: httpx.Response) -> Iterator[tuple[Occurrence, ...]]:
        kind = response.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            raise ServiceFailed(f"{response.request.url} answered {kind or 'without a content type'}")
        parser = EventParser(self._after)
        try:
            for piece in response.iter_bytes():
                found = parser.feed(piece)
                burst = tuple(
                    Occurrence.model_validate_json(event.data) for event in found if event.kind != "deleted"
                )
                self._after = parser.last_id
                self.ended = any(each.is_last for each in burst) or len(burst) < len(found)
                yield burst
                if self.ended:
                    return
        except (ValueError, ValidationError) as error:
            raise ServiceFailed(f"{response.request.url} gave no event stream that can be read") from error
        except httpx.TransportError as error:
            raise ServiceUnreachable(f"the stream of {response.request.url} broke off ({error})") from error
