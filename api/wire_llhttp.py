"""Requests read by llhttp, through httptools: much faster than h11, and bounded here, since it bounds nothing."""

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.errors import shown
from api.limits import MAX_HEADER_BYTES, WHOLE
from api.wire import Wire

VERSIONS = frozenset({"1.0", "1.1"})
"""llhttp takes more, which nobody here answers in their own way."""
AMBIGUOUS = frozenset({b"content-length", b"transfer-encoding"})


class LlhttpWire(Wire, HttpToolsProtocol):
    """One connection."""

    most_waiting = 64
    """Requests that may wait behind one that is being answered: llhttp reads all that arrives at once."""

    _in_head = False
    """Whether a request's line and headers have begun and not ended."""
    _is_whole = True
    """Whether nothing more belongs to the last request."""
    _unused_bytes = 0
    """That came since anything was made of them: a head, or a part of a body."""
    _refusal: tuple[int, str, str] | None = None

    def data_received(self, data: bytes) -> None:
        """Takes what came; notes since when it has been part of a request only."""
        self._unset_keepalive_if_required()
        self._pieces += 1
        if self._refusal is not None:
            return
        # A head that is whole is measured by `limits`; here it matters that one without an end isn't kept.
        self._unused_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            self._refuse_for(error)
            return
        if self._unused_bytes > MAX_HEADER_BYTES and (self._in_head or not self._is_whole):
            self.refuse(431, "headers-too-long", "the request's line and headers are too long")
        elif len(self.pipeline) > self.most_waiting:
            self.refuse(
                429, "too-many-waiting", f"at most {self.most_waiting} requests may wait on one connection"
            )
        elif not self._in_head and self._is_busy():
            self._incomplete_since_s = None
        elif self._incomplete_since_s is None:
            # Also what comes after an answer was given early: the rest of a body must not come for ever.
            self._incomplete_since_s = self.loop.time()

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # Whoever asks for another protocol gets an answer in this one, and so does what it sends next.
            self._feed(data[upgrade.args[0] :])

    def is_in_head(self) -> bool:
        """See `Wire`."""
        return self._in_head

    def owes_body(self) -> bool:
        """See `Wire`."""
        return not self._in_head and not self._is_whole and not self.flow.read_paused

    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_head, self._is_whole = True, False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; what comes after a body is thrown away, since no check has seen it."""
        if self._in_head:
            super().on_header(name, value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        """The request can be answered."""
        if self.parser.get_http_version() not in VERSIONS:
            raise ValueError("HTTP/1.1 and HTTP/1.0 are answered here")
        self._in_head, self._unused_bytes = False, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._unused_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._is_whole, self._unused_bytes = True, 0
        self.scope[WHOLE] = True  # type: ignore[literal-required]
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """An answer was given; the next request's turn."""
        super().on_response_complete()
        if self._refusal is not None and not self._is_busy() and not self.transport.is_closing():
            self._write_refusal(*self._refusal)

    def _refuse_for(self, error: httptools.HttpParserError) -> None:
        if (
            self._in_head
            and AMBIGUOUS & {name for name, _ in self.headers}
            and "can't be present" in str(error)
        ):
            # A proxy in front may believe the one that is not believed here.
            detail = "the request has both Content-Length and Transfer-Encoding"
            self.refuse(400, "ambiguous-length", detail)
            return
        cause = error.__context__ or error
        self.refuse(400, "malformed-request", f"the request is not valid HTTP: {shown(str(cause))}")

    def refuse(self, status: int, code: str, detail: str) -> None:
        """See `Wire`."""
        self._refusal = (status, code, detail)
        if not self._is_busy():
            self._write_refusal(*self._refusal)
        elif self._in_head or self._is_whole:
            # Earlier requests have their answers first.
            self.flow.pause_reading()
        elif self.pipeline or self.cycle.response_started:
            self.transport.close()
        else:
            self.cycle.disconnected = True  # what the app would still answer has no place any more
            self._write_refusal(*self._refusal)

    def _unsupported_upgrade_warning(self) -> None:
        # Not worth a line in the log, which anyone could fill.
        return
