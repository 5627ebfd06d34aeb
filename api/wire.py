"""HTTP on the wire: what never becomes a request is a problem document, too, and no connection is held for nothing.

uvicorn's protocol waits for ever for headers that trickle in, and for readers that stopped reading: even closing a
connection waits for them to take what is left. Here every connection is looked at now and then, and given up if nothing
moves.
"""

import asyncio
import logging
import secrets
import sys

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from api.errors import problem_response, shown
from api.middleware import completed

log = logging.getLogger("ghostwatt.api")


class Wire(H11Protocol):
    """One connection."""

    look_s = 5.0
    """Seconds between two looks at a connection."""
    headers_s = 15.0
    """Longest time that a request's line and headers may take."""
    stalled_s = 30.0
    """Longest time for which a reader may take nothing of what is waiting for it."""
    most_connections = 900
    """At a time: what a process may open by default is 1,024 files, and the database needs some."""

    _incomplete_since_s: float | None = None
    _unread_bytes = 0
    _unread_since_s: float | None = None
    _look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins, unless there are too many."""
        super().connection_made(transport)
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

    def data_received(self, data: bytes) -> None:
        """Takes what came; notes since when it has been part of a request only."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE or not self.conn.trailing_data[0]:
            self._incomplete_since_s = None
        elif self._incomplete_since_s is None:
            self._incomplete_since_s = self.loop.time()

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no request; called while the parser's error is handled."""
        error = sys.exc_info()[1]
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if status == 431:
            self._refuse(431, "headers-too-long", "the request's line and headers are too long")
        else:
            self._refuse(
                400, "malformed-request", f"the request is not valid HTTP: {shown(str(error or msg))}"
            )

    def _refuse(self, status: int, code: str, detail: str) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        if self.cycle is not None:
            self.cycle.disconnected = True  # what the app would still answer has no place any more
        request_id = secrets.token_hex(10)
        response = problem_response(status, code, detail, request_id=request_id)
        headers = [*completed(response.raw_headers, request_id), (b"connection", b"close")]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=b""),
            h11.Data(data=bytes(response.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        log.info("%s refused what is no request: %d %s", request_id, status, code)
        self.transport.close()

    def _look_at_it(self) -> None:
        moment_s = self.loop.time()
        self._look = self.loop.call_later(self.look_s, self._look_at_it)
        since_s = self._incomplete_since_s
        if since_s is not None and moment_s - since_s > self.headers_s and not self.transport.is_closing():
            self._incomplete_since_s = None
            self._refuse(408, "request-timeout", f"no whole request arrived within {self.headers_s:g} s")
        unread_bytes = self.transport.get_write_buffer_size()
        if not unread_bytes or unread_bytes < self._unread_bytes:
            self._unread_since_s = None
        elif self._unread_since_s is None:
            self._unread_since_s = moment_s
        elif moment_s - self._unread_since_s > self.stalled_s:
            # Not close(): that would wait for the reader, too.
            self.transport.abort()
        self._unread_bytes = unread_bytes
