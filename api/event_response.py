"""An event stream as an answer: gives its place back however it ends, and doesn't wait for a reader who stalls."""

import asyncio
import logging

from fastapi.sse import EventSourceResponse
from starlette.types import Message, Receive, Scope, Send

from api.streams import Stream

log = logging.getLogger("ghostwatt.api")

STALLED_S = 30.0
"""Seconds that a reader may leave what was sent unread before its connection is cut."""


class EventResponse(EventSourceResponse):
    """Answers with a stream's chunks."""

    def __init__(self, stream: Stream, *, stalled_s: float = STALLED_S) -> None:
        """Args: the stream, which is released at the end; seconds that one chunk may take to send."""
        super().__init__(stream.chunks(), headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._stream = stream
        self._stalled_s = stalled_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends until the stream ends or the reader goes or stalls."""

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self._stalled_s):
                await send(message)

        try:
            await super().__call__(scope, receive, send_in_time)
        except TimeoutError:
            log.info("a watcher of %s stopped reading", self._stream.experiment_id)
        finally:
            self._stream.release()
