"""HTTP on the wire: what never becomes a request is a problem document, too, and no connection is held for nothing.

uvicorn's protocols wait for ever for headers that trickle in, and for readers that stopped reading: even closing a
connection waits for them to take what is left. Here every connection is looked at now and then, and given up if nothing
moves. Where there are as many as there may be, those on which nothing is lost give way to new ones (`Standing`); only
while all are busy with requests is a newcomer turned away. That is the same whichever parser reads the requests: llhttp
(`wire_llhttp`) where httptools is installed, since it costs far less, else h11 (`wire_h11`).
"""

import asyncio
import heapq
import logging
import secrets
from enum import IntEnum
from http import HTTPStatus
from importlib.util import find_spec
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.errors import problem_response
from api.joined_writes import JoinedWrites
from api.limits import REFUSED
from api.middleware import completed

log = logging.getLogger("ghostwatt.api")

CROWDED = "too-many-connections"
CROWDED_DETAIL = "too many connections are open; come back in a moment"
RETRY_AFTER_S = 1
"""Seconds after which whoever found no place may try again."""


class Standing(IntEnum):
    """How much would be lost with a connection; the least gives way first, and of equals the one that waits longest."""

    WITHOUT_HEAD = 0
    """No whole request line and headers have come, or only the rest of a body that was answered already."""
    REFUSED = 1
    """What is left of a refused body is thrown away, so that the refusal can be read."""
    KEPT_OPEN = 2
    """All requests are answered; another may come."""
    STILL = 3
    """Between two looks the other side has neither sent any of the body that it owes nor taken any of the answer."""
    BUSY = 4
    """A request is read, worked on or answered: nobody else's need ends that."""


def wire_class() -> "type[Wire]":
    """The fastest protocol that can be had here."""
    if find_spec("httptools") is None:
        from api.wire_h11 import H11Wire

        return H11Wire
    from api.wire_llhttp import LlhttpWire

    return LlhttpWire


class Wire(asyncio.Protocol):
    """One connection; mixed in before one of uvicorn's protocols, which reads and answers the requests."""

    look_s = 5.0
    """Seconds between two looks at a connection."""
    headers_s = 15.0
    """Longest time that a request's line and headers may take."""
    stalled_s = 30.0
    """Longest time for which a reader may take nothing of what is waiting for it."""
    leaving_s = 1.0
    """Longest time that a connection takes to end for another's sake."""
    most_connections = 900
    """At a time: what a process may open by default is 1,024 files, and the database needs some."""
    most_newcomers = 50
    """More than that, which stay until they have heard that there is no room."""

    # Of uvicorn's protocol.
    app: Any
    connections: set[Any]
    cycle: Any
    flow: Any
    timeout_keep_alive_task: asyncio.TimerHandle | None
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    _began_s = 0.0
    _incomplete_since_s: float | None = None
    """Since when a part of a request, and no more, has been there."""
    _unread_bytes = 0
    _unread_since_s: float | None = None
    _pieces = 0
    """How often something came."""
    _pieces_before: int | None = None
    """That at the last look, if the other side owed a part of a body then."""
    _silent_since_s: float | None = None
    """Since when it owes that and sends nothing."""
    _is_newcomer = False
    """Whether there was no room when it came, and it has not had its first answer."""
    _inner: Any
    """A newcomer's app once it is let in."""
    _look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins; if there are too many, in the place of another, or to hear that there is none."""
        super().connection_made(JoinedWrites(transport, self.loop))
        self._began_s = self._incomplete_since_s = self.loop.time()
        self._look = self.loop.call_later(self.look_s, self._look_at_it)
        if len(self.connections) <= self.most_connections or self._finds_room():
            return
        self._is_newcomer = True
        if len(self.connections) > self.most_connections + self.most_newcomers:
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, CROWDED, CROWDED_DETAIL)
            return
        # The answer waits for the request's head: closed on what is unread, a connection loses it.
        self._inner, self.app = self.app, self._let_in

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A newcomer's app: the service's if there is room by now, else a refusal."""
        if self._is_newcomer and not self._finds_room():
            log.warning("more than %d connections, all of them busy", self.most_connections)
            await _refusal(HTTPStatus.SERVICE_UNAVAILABLE, CROWDED, CROWDED_DETAIL)(scope, receive, send)
            return
        self._is_newcomer, self.app = False, self._inner
        await self._inner(scope, receive, send)

    def _finds_room(self) -> bool:
        """Whether there is a place for this one, if need be that of another on which nothing is lost."""
        others = [
            each
            for each in self.connections
            if each is not self and not each._is_newcomer and not each.transport.is_closing()
        ]
        if len(others) < self.most_connections:
            return True
        # Some at once, since looking at all costs more than all else about a new connection.
        several = max(1, self.most_connections // 100)
        least = heapq.nsmallest(several, ((each.standing(), number) for number, each in enumerate(others)))
        found = [(standing, others[number]) for (standing, _), number in least if standing < Standing.STILL]
        if not found and least[0][0][0] is Standing.STILL:
            found = [(Standing.STILL, others[least[0][1]])]
        for standing, each in found:
            # What is ended may take a moment until it is gone.
            self.connections.discard(each)
            each.give_way(standing)
        return bool(found)

    def standing(self) -> tuple[Standing, float]:
        """How much would be lost with it, and since when that is so."""
        if self.cycle is None or self.cycle.response_complete:
            if self._incomplete_since_s is not None:
                return Standing.WITHOUT_HEAD, self._incomplete_since_s
            ends = self.timeout_keep_alive_task
            return Standing.KEPT_OPEN, self._began_s if ends is None else ends.when()
        if REFUSED in self.cycle.scope:
            return Standing.REFUSED, self._began_s
        since_s = self._still_since_s()
        return (Standing.BUSY, self._began_s) if since_s is None else (Standing.STILL, since_s)

    def _still_since_s(self) -> float | None:
        if self.transport.get_write_buffer_size():
            since_s = self._unread_since_s
            # At the first look nobody knows whether what waits was written just now.
            return None if since_s is None or self.loop.time() - since_s < self.look_s else since_s
        is_silent = self.owes_body() and self._pieces == self._pieces_before
        return self._silent_since_s if is_silent else None

    def give_way(self, standing: Standing) -> None:
        """Ends it for the sake of another, with an answer where one can still be given."""
        if standing is Standing.STILL and self.transport.get_write_buffer_size():
            self.transport.abort()
        elif standing is Standing.REFUSED:
            # As if all of the body were there, which nobody looks at: the refusal is written now.
            self.cycle.keep_alive, self.cycle.more_body = False, False
            self.cycle.message_event.set()
        elif standing is Standing.STILL or self.cycle is None or self.is_in_head():
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, CROWDED, CROWDED_DETAIL)
        else:
            self.transport.close()
        # All that waits for the reader, who may never come.
        self.loop.call_later(self.leaving_s, self.transport.abort)

    def is_in_head(self) -> bool:
        """Whether a request's line and headers have begun and not ended."""
        raise NotImplementedError

    def owes_body(self) -> bool:
        """Whether a request's head is there, its body is not, and more of it would be taken."""
        raise NotImplementedError

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        super().connection_lost(exc)

    def refuse(self, status: int, code: str, detail: str) -> None:
        """Answers what is no request with a problem, once nothing earlier waits for its answer, and closes."""
        raise NotImplementedError

    def _write_refusal(self, status: int, code: str, detail: str) -> None:
        response = _refusal(status, code, detail)
        self.transport.write(
            b"".join(
                [
                    f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode(),
                    *(b"%s: %s\r\n" % header for header in response.raw_headers),
                    b"\r\n",
                    bytes(response.body),
                ]
            )
        )
        log.info("%s refused what is no request: %d %s", response.headers["x-request-id"], status, code)
        self.transport.close()

    def _look_at_it(self) -> None:
        moment_s = self.loop.time()
        self._look = self.loop.call_later(self.look_s, self._look_at_it)
        since_s = self._incomplete_since_s
        if since_s is not None and moment_s - since_s > self.headers_s and not self.transport.is_closing():
            self._incomplete_since_s = None
            self.refuse(408, "request-timeout", f"no whole request arrived within {self.headers_s:g} s")
        self._note_silence(moment_s)
        unread_bytes = self.transport.get_write_buffer_size()
        if not unread_bytes or unread_bytes < self._unread_bytes:
            self._unread_since_s = None
        elif self._unread_since_s is None:
            self._unread_since_s = moment_s
        elif moment_s - self._unread_since_s > self.stalled_s:
            # Not close(): that would wait for the reader, too.
            self.transport.abort()
        self._unread_bytes = unread_bytes

    def _note_silence(self, moment_s: float) -> None:
        owes = self.owes_body()
        if not owes or self._pieces != self._pieces_before:
            self._silent_since_s = None
        elif self._silent_since_s is None:
            self._silent_since_s = moment_s
        self._pieces_before = self._pieces if owes else None


def _refusal(status: int, code: str, detail: str) -> Response:
    request_id = secrets.token_hex(10)
    headers = {"Connection": "close"}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    response = problem_response(status, code, detail, request_id=request_id, headers=headers)
    response.raw_headers = completed(response.raw_headers, request_id)
    return response
