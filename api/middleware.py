"""What every request and answer gets: an id, the security headers, a log line, a problem if all else fails.

A pure ASGI class, so that streams stay streams. It is the outermost one.
"""

import logging
import re
import secrets
import time
from collections.abc import Iterable
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import problem_response

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

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else secrets.token_hex(10)
        scope.setdefault("state", {})["request_id"] = request_id
        began = time.perf_counter()
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = _completed(message.get("headers", ()), request_id)
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except Exception:
            error_log.exception("request %s failed", request_id)
            if status:
                raise  # the answer has begun; only cutting the connection can say that it is not whole
            response = problem_response(
                500,
                "internal-error",
                f"the service met an error it did not expect; its log has it under request id {request_id}",
                request_id=request_id,
            )
            await response(scope, receive, send_with_headers)
        finally:
            access_log.info(
                "%s %s %s %d %.1f ms",
                request_id,
                scope["method"],
                quote(scope["path"], safe="/:"),
                status,
                1_000 * (time.perf_counter() - began),
            )


_RAW_HEADERS = tuple((name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items())


def _completed(given: Iterable[tuple[bytes, bytes]], request_id: str) -> list[tuple[bytes, bytes]]:
    """An answer's headers with the request's id and those security headers that it doesn't set itself."""
    headers = [pair for pair in given if pair[0].lower() != b"x-request-id"]
    names = {name.lower() for name, _ in headers}
    headers += [pair for pair in _RAW_HEADERS if pair[0] not in names]
    return [*headers, (b"x-request-id", request_id.encode())]
