"""A real service on loopback, for tests of the API."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from api.app import create_app
from api.context import Context
from api.examples import SPEC
from api.limits import MAX_HEADER_BYTES
from api.rates import RateLimiter
from api.server import PatientServer
from api.streams import Limits, Streams
from api.wire import Wire, wire_class
from phantom_core.checks import Capacity
from services.database import Database
from services.settings import Settings

Ask = Callable[..., httpx.Response]
"""What the fixture `ask` gives."""


class FakeBackground:
    """A dispatcher that dispatches nothing."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.age_s: float | None = 0.5
        self.problem: str | None = None
        self.fails: str | None = None
        self.has: Capacity | None = None

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def heartbeat_age_s(self) -> float | None:
        return self.age_s

    def capacity(self) -> Capacity | None:
        return self.has

    def cluster_problem(self) -> str | None:
        return self.problem

    def trouble(self) -> str | None:
        return self.fails


@dataclass
class Service:
    """A service on loopback, with what tests look at."""

    url: str
    http: httpx.Client
    database: Database
    background: FakeBackground
    settings: Settings
    app: FastAPI

    @property
    def streams(self) -> Streams:
        context: Context = self.app.state.context
        return context.streams

    def submit(self, **changes: Any) -> str:
        response = self.http.post("/v1/experiments", json={**SPEC, **changes})
        assert response.status_code == 202, response.text
        return str(response.json()["id"])


@contextmanager
def running(
    settings: Settings,
    background: FakeBackground,
    limiter: RateLimiter | None = None,
    limits: Limits | None = None,
    wire: type[Wire] | None = None,
) -> Iterator[Service]:
    listener = socket.socket(proto=socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    app = create_app(settings, background=background, limiter=limiter, limits=limits)
    config = uvicorn.Config(
        app,
        http=wire or wire_class(),
        ws="none",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        lifespan="on",
        log_config=None,
        timeout_keep_alive=600,  # longer than any pause of the machine: nothing of a test's ends by itself
        timeout_graceful_shutdown=2,
    )
    server = PatientServer(config)

    def serve() -> None:
        # A start that fails is uvicorn's sys.exit, which must not look like a thread that crashed.
        with suppress(SystemExit):
            server.run(sockets=[listener])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the service did not start"
            time.sleep(0.01)
        with httpx.Client(base_url=url, timeout=120) as http, Database(settings.database_url) as database:
            yield Service(url, http, database, background, settings, app)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


Start = Callable[..., Service]
"""What the fixture `start` gives."""
