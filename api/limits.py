"""How long a request may be: body, target, headers, and the time its body may take to arrive.

A body must come as it is: a compressed one could be a thousand times as long as its limit.
"""

import asyncio
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import ApiError, BodyTooLarge, problem_response, shown
from api.headers import header, header_list

MAX_BODY_BYTES = 2 * 1024 * 1024
"""Longest body where no route says otherwise: a spec with ten thousand columns fits."""
MAX_INGEST_BODY_BYTES = 32 * 1024 * 1024
"""Longest batch: 1,000 events, each with some seconds of power samples."""
MAX_GROUP_BODY_BYTES = 256 * 1024
"""Longest body of what else jobs say."""
BODY_BYTES = {
    "/internal/v1/events": MAX_INGEST_BODY_BYTES,
    "/internal/": MAX_GROUP_BODY_BYTES,
    "": MAX_BODY_BYTES,
}
"""Longest body by path prefix, longest prefix first."""
MAX_TARGET_BYTES = 8 * 1024
"""Longest path and query."""
MAX_HEADER_BYTES = 32 * 1024
"""Longest headers, all together."""
MAX_HEADERS = 100
"""Most headers."""
WHOLE = "ghostwatt.body_is_whole"
"""Key of a request's scope that the protocol sets once all of the body is there."""
REFUSED = "ghostwatt.refused"
"""Key of a request's scope that is set while what is left of its refused body is thrown away."""
BODY_PAUSE_S = 30.0
"""Longest pause between two parts of a body."""
BODY_S = 300.0
"""Longest time for a whole body, so that a byte now and then doesn't keep a request open for days."""
DRAINED_BYTES = 64 * 1024 * 1024
"""Most of a refused body that is read and thrown away."""
DRAIN_S = 5.0
"""Longest time that this may take."""


class RequestLimits:
    """Refuses what is too long with 413, 414 or 431, a body that is compressed with 415, one that stops with 408."""

    def __init__(
        self,
        app: ASGIApp,
        body_bytes: Mapping[str, int] | None = None,
        body_pause_s: float = BODY_PAUSE_S,
        body_s: float = BODY_S,
    ) -> None:
        """Sets the limits.

        Args:
            app: The app inside.
            body_bytes: Longest body by path prefix, longest prefix first; "" is the default.
            body_pause_s: Seconds without a byte after which a body is given up.
            body_s: Seconds after which it is given up however it arrives.
        """
        self.app = app
        self.body_bytes = body_bytes or BODY_BYTES
        self.body_pause_s = body_pause_s
        self.body_s = body_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the request, or refuses it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit_bytes = next(
            size for prefix, size in self.body_bytes.items() if scope["path"].startswith(prefix)
        )
        body = _Body(scope, receive, limit_bytes, self.body_pause_s, self.body_s)
        expects_go_ahead = "100-continue" in (header(scope, b"expect") or "").lower()

        async def send_after_body(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400 and not expects_go_ahead:
                await body.drain()
            await send(message)

        refusal = _refusal(scope, limit_bytes)
        if refusal is None:
            await self.app(scope, body.receive, send_after_body)
            return
        response = problem_response(
            refusal.status,
            refusal.code,
            refusal.detail,
            request_id=scope.get("state", {}).get("request_id"),
            headers={"Connection": "close", **refusal.headers},
        )
        await response(scope, receive, send_after_body)


class _Body:
    """One request's body as it arrives."""

    def __init__(
        self, scope: Scope, receive: Receive, limit_bytes: int, pause_s: float, whole_s: float
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._whole_s = whole_s
        self._end_s: float | None = None
        self._limit_bytes = limit_bytes
        self._pause_s = pause_s
        self._received_bytes = 0
        self._complete = False

    async def receive(self) -> Message:
        """The next part, for the app.

        Raises:
            ApiError: 413 if there is more than the limit, 408 if nothing comes.
        """
        if self._complete:
            return await self._receive()
        if WHOLE in self._scope:
            message = await self._next()  # there is nothing to wait for
        else:
            message = await self._next_in_time()
        if self._received_bytes > self._limit_bytes:
            raise BodyTooLarge(self._limit_bytes)
        return message

    async def _next_in_time(self) -> Message:
        moment_s = asyncio.get_running_loop().time()
        self._end_s = moment_s + self._whole_s if self._end_s is None else self._end_s
        try:
            async with asyncio.timeout_at(min(moment_s + self._pause_s, self._end_s)):
                return await self._next()
        except TimeoutError as error:
            self._complete = True
            detail = (
                f"no byte of the body arrived for {self._pause_s:g} s, or not all of it within "
                f"{self._whole_s:g} s; send the request again"
            )
            raise ApiError(408, "request-timeout", detail, headers={"Connection": "close"}) from error

    async def drain(self) -> None:
        """Reads what a refusal left unread: closing on it would reset the connection and lose the answer."""
        if self._complete:
            return
        self._scope[REFUSED] = True
        try:
            async with asyncio.timeout(DRAIN_S):
                while not self._complete and self._received_bytes < DRAINED_BYTES:
                    await self._next()
        except TimeoutError:
            self._complete = True

    async def _next(self) -> Message:
        message = await self._receive()
        self._received_bytes += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        return message


def _refusal(scope: Scope, limit_bytes: int) -> ApiError | None:
    target_bytes = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    if target_bytes > MAX_TARGET_BYTES:
        detail = f"path and query are {target_bytes:,} bytes long; {MAX_TARGET_BYTES:,} are taken"
        return ApiError(414, "target-too-long", detail)
    headers = scope["headers"]
    if (
        len(headers) > MAX_HEADERS
        or sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES
    ):
        detail = f"at most {MAX_HEADERS} headers of {MAX_HEADER_BYTES:,} bytes in all are taken"
        return ApiError(431, "headers-too-long", detail)
    names = {name for name, _ in headers}
    if b"content-length" in names and b"transfer-encoding" in names:
        # A proxy in front may believe the one that is not believed here, and see another request behind the body.
        return ApiError(400, "ambiguous-length", "the request has both Content-Length and Transfer-Encoding")
    if names & {b"content-length", b"transfer-encoding"}:
        given = ", ".join(header_list(scope, b"content-encoding"))
        if {each.strip().lower() for each in given.split(",")} - {"", "identity"}:
            detail = f"the body's content encoding is {shown(given)}; send it as it is, without compression"
            return ApiError(415, "unsupported-encoding", detail, headers={"Accept-Encoding": "identity"})
    length = header(scope, b"content-length") or "0"
    if length.isascii() and length.isdigit() and int(length[:20]) > limit_bytes:
        return BodyTooLarge(limit_bytes)
    return None
