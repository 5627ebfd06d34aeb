"""What every request and answer gets: an id, the security headers, a log line, a problem if all else fails.

A pure ASGI class, so that streams stay streams. It is the outermost one.
"""

import logging
import re
import secrets
import time
from collections.abc import Iterable
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import problem_response
from api.headers import header
from api.logs import request_fields
from api.metrics import ServiceMetrics

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""A caller's own X-Request-ID is kept if it looks like this, so that nothing else reaches the log."""

PAGE_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy of every answer that brings no other: nothing from elsewhere, nothing inline."""

SECURITY_HEADERS = {
    "Content-Security-Policy": PAGE_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
"""Set unless the answer sets its own. What is known changes by the second, so nothing is cached unasked."""

access_log = logging.getLogger("ghostwatt.access")
error_log = logging.getLogger("ghostwatt.api")


class RequestContext:
    """Gives the request an id, the answer its headers, the log its line, and an unexpected error its 500."""

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics | None = None) -> None:
        """Args: the app inside, where requests are counted."""
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = header(scope, b"x-request-id")
        request_id = given if given and REQUEST_ID.fullmatch(given) else secrets.token_hex(10)
        scope.setdefault("state", {})["request_id"] = request_id
        answer = _Answer(scope["method"], request_id)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer.begin(message["status"])
                message["headers"] = completed(message.get("headers", ()), request_id)
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except Exception:
            error_log.exception(
                "request %s failed", request_id, extra={"request_id": request_id, **request_fields(scope)}
            )
            if answer.status:
                raise  # the answer has begun; only cutting the connection can say that it is not whole
            response = problem_response(
                500,
                "internal-error",
                f"the service met an error it did not expect; its log has it under request id {request_id}",
                request_id=request_id,
            )
            await response(scope, receive, send_with_headers)
        finally:
            answer.log(scope)
            if self.metrics is not None:
                self.metrics.answered(answer.method, route_of(scope), answer.status, answer.began_s)


class _Answer:
    """What is known of one answer, for the log and the figures."""

    def __init__(self, method: str, request_id: str) -> None:
        self.method = method
        self.request_id = request_id
        self.status = 0
        self.began_s: float | None = None
        self._asked_s = time.perf_counter()

    def begin(self, status: int) -> None:
        self.status = status
        self.began_s = time.perf_counter() - self._asked_s

    def log(self, scope: Scope) -> None:
        if not access_log.isEnabledFor(logging.INFO):
            return
        path = quote(scope["path"], safe="/:")
        duration_ms = round(1_000 * (time.perf_counter() - self._asked_s), 1)
        fields = {
            "request_id": self.request_id,
            "method": self.method,
            "route": route_of(scope),
            "path": path,
            "status": self.status,
            "duration_ms": duration_ms,
            **request_fields(scope),
        }
        # As `info` does, but for the search for the line of code that asks: it is always this one, and nobody is told.
        access_log.handle(
            access_log.makeRecord(
                access_log.name,
                logging.INFO,
                __file__,
                0,
                "%s %s %s %d %.1f ms",
                (self.request_id, self.method, path, self.status, duration_ms),
                None,
                extra=fields,
            )
        )


def route_of(scope: Scope) -> str | None:
    """Template of the route that answered; None if none did."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else None


_RAW_HEADERS = tuple((name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items())


def completed(given: Iterable[tuple[bytes, bytes]], request_id: str) -> list[tuple[bytes, bytes]]:
    """An answer's headers with the request's id and those security headers that it doesn't set itself."""
    headers = [pair for pair in given if pair[0].lower() != b"x-request-id"]
    names = {name.lower() for name, _ in headers}
    headers += [pair for pair in _RAW_HEADERS if pair[0] not in names]
    return [*headers, (b"x-request-id", request_id.encode())]
