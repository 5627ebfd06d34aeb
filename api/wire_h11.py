"""Requests read by h11, in Python: what serves where httptools is not installed."""

import sys

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from api.errors import shown
from api.wire import Wire


class H11Wire(Wire, H11Protocol):
    """One connection."""

    def data_received(self, data: bytes) -> None:
        """Takes what came; notes since when it has been part of a request only."""
        self._pieces += 1
        super().data_received(data)
        if not self._is_partial():
            self._incomplete_since_s = None
        elif self._incomplete_since_s is None:
            self._incomplete_since_s = self.loop.time()

    def is_in_head(self) -> bool:
        """See `Wire`."""
        return self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])

    def owes_body(self) -> bool:
        """See `Wire`."""
        return self.conn.their_state is h11.SEND_BODY and not self.flow.read_paused

    def _is_partial(self) -> bool:
        if self.conn.their_state is h11.IDLE:
            return self.is_in_head()
        # Also what comes after an answer was given early: the rest of a body must not come for ever.
        return (
            self.conn.their_state is h11.SEND_BODY and self.cycle is not None and self.cycle.response_complete
        )

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no request; called while the parser's error is handled."""
        error = sys.exc_info()[1]
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if status == 431:
            self.refuse(431, "headers-too-long", "the request's line and headers are too long")
        else:
            self.refuse(
                400, "malformed-request", f"the request is not valid HTTP: {shown(str(error or msg))}"
            )

    def refuse(self, status: int, code: str, detail: str) -> None:
        """See `Wire`."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        if self.cycle is not None:
            self.cycle.disconnected = True  # what the app would still answer has no place any more
        self._write_refusal(status, code, detail)
