"""HTTP on the wire: what never becomes a request is a problem document, too, and no connection is held for nothing.

uvicorn's protocols wait for ever for headers that trickle in, and for readers that stopped reading: even closing a
connection waits for them to take what is left. Here every connection is looked at now and then, and given up if nothing
moves. That is the same whichever parser reads the requests: llhttp (`wire_llhttp`) where httptools is installed, since
it costs far less, else h11 (`wire_h11`).
"""

import asyncio
import logging
import secrets
from http import HTTPStatus
from importlib.util import find_spec
from typing import Any

from api.errors import problem_response
from api.joined_writes import JoinedWrites
from api.middleware import completed

log = logging.getLogger("ghostwatt.api")


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
    most_connections = 900
    """At a time: what a process may open by default is 1,024 files, and the database needs some."""

    # Of uvicorn's protocol.
    connections: set[Any]
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    _incomplete_since_s: float | None = None
    """Since when a part of a request, and no more, has been there."""
    _unread_bytes = 0
    _unread_since_s: float | None = None
    _look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins, unless there are too many."""
        super().connection_made(JoinedWrites(transport, self.loop))
        if len(self.connections) > self.most_connections:
            log.warning("more than %d connections; a new one was closed", self.most_connections)
            transport.abort()
            return
        self._incomplete_since_s = self.loop.time()
        self._look = self.loop.call_later(self.look_s, self._look_at_it)

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
        request_id = secrets.token_hex(10)
        response = problem_response(status, code, detail, request_id=request_id)
        headers = [*completed(response.raw_headers, request_id), (b"connection", b"close")]
        self.transport.write(
            b"".join(
                [
                    f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode(),
                    *(b"%s: %s\r\n" % header for header in headers),
                    b"\r\n",
                    bytes(response.body),
                ]
            )
        )
        log.info("%s refused what is no request: %d %s", request_id, status, code)
        self.transport.close()

    def _look_at_it(self) -> None:
        moment_s = self.loop.time()
        self._look = self.loop.call_later(self.look_s, self._look_at_it)
        since_s = self._incomplete_since_s
        if since_s is not None and moment_s - since_s > self.headers_s and not self.transport.is_closing():
            self._incomplete_since_s = None
            self.refuse(408, "request-timeout", f"no whole request arrived within {self.headers_s:g} s")
        unread_bytes = self.transport.get_write_buffer_size()
        if not unread_bytes or unread_bytes < self._unread_bytes:
            self._unread_since_s = None
        elif self._unread_since_s is None:
            self._unread_since_s = moment_s
        elif moment_s - self._unread_since_s > self.stalled_s:
            # Not close(): that would wait for the reader, too.
            self.transport.abort()
        self._unread_bytes = unread_bytes
