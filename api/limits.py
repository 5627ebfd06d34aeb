"""How long a request may be: body, target, and the time its body may take to arrive."""

import asyncio
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import ApiError, BodyTooLarge, problem_response

MAX_BODY_BYTES = 2 * 1024 * 1024
"""Longest body where no route says otherwise: a spec with ten thousand columns fits."""
MAX_INGEST_BODY_BYTES = 32 * 1024 * 1024
"""Longest body of `/internal/`: a batch of 1,000 events, each with some seconds of power samples."""
MAX_TARGET_BYTES = 8 * 1024
"""Longest path and query."""
BODY_PAUSE_S = 30.0
"""Longest pause between two parts of a body."""


class RequestLimits:
    """Refuses what is too long with 413 or 414, and gives up on a body that stops arriving with 408."""

    def __init__(
        self,
        app: ASGIApp,
        body_bytes: Mapping[str, int] | None = None,
        body_pause_s: float = BODY_PAUSE_S,
    ) -> None:
        """Sets the limits.

        Args:
            app: The app inside.
            body_bytes: Longest body by path prefix, longest prefix first; "" is the default.
            body_pause_s: Seconds without a byte after which a body is given up.
        """
        self.app = app
        self.body_bytes = body_bytes or {"/internal/": MAX_INGEST_BODY_BYTES, "": MAX_BODY_BYTES}
        self.body_pause_s = body_pause_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the request, or refuses it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            response = problem_response(
                refusal.status,
                refusal.code,
                refusal.detail,
                request_id=scope.get("state", {}).get("request_id"),
                headers={"Connection": "close"},
            )
            await response(scope, receive, send)
            return
        limit_bytes = self._limit_bytes(scope["path"])
        received_bytes, complete = 0, False

        async def limited_receive() -> Message:
            nonlocal received_bytes, complete
            if complete:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), self.body_pause_s)
            except TimeoutError as error:
                detail = f"no byte of the body arrived for {self.body_pause_s:g} s; send the request again"
                raise ApiError(408, "request-timeout", detail, headers={"Connection": "close"}) from error
            received_bytes += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received_bytes > limit_bytes:
                raise BodyTooLarge(limit_bytes)
            return message

        await self.app(scope, limited_receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        target_bytes = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        if target_bytes > MAX_TARGET_BYTES:
            detail = f"path and query are {target_bytes:,} bytes long; {MAX_TARGET_BYTES:,} are taken"
            return ApiError(414, "target-too-long", detail)
        length = Headers(scope=scope).get("content-length", "0")
        limit_bytes = self._limit_bytes(scope["path"])
        if length.isascii() and length.isdigit() and int(length[:20]) > limit_bytes:
            return BodyTooLarge(limit_bytes)
        return None

    def _limit_bytes(self, path: str) -> int:
        return next(size for prefix, size in self.body_bytes.items() if path.startswith(prefix))
