"""The web server: ends in order whatever comes, and doesn't wait for streams that would never end by themselves."""

import logging
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from api.context import Context

log = logging.getLogger("ghostwatt")


class PatientServer(uvicorn.Server):
    """A server that a second ctrl-c doesn't keep from shutting down in order: that is what ends Ray."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """Notes a signal, however often it comes, as a request to end."""
        log.info("ending: got signal %d", sig)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends event streams, then waits for the requests that are left, as long as its configuration says."""
        app = self.config.app
        context = getattr(app.state, "context", None) if isinstance(app, FastAPI) else None
        if isinstance(context, Context):
            context.streams.close()
        await super().shutdown(sockets)
