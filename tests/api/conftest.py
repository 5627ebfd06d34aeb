import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from api.app import create_app
from api.examples import SPEC
from phantom_core.checks import Capacity
from services.database import Database
from services.settings import Settings

Ask = Callable[..., httpx.Response]


@pytest.fixture
def ask() -> Ask:
    """Sends one request straight into an ASGI app, without a network."""

    def send(
        app: Any, method: str, url: str, base_url: str = "http://127.0.0.1:8411", **arguments: Any
    ) -> httpx.Response:
        async def exchange() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base_url) as client:
                return await client.request(method, url, **arguments)

        return asyncio.run(exchange())

    return send


class FakeBackground:
    """A dispatcher that dispatches nothing."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.age_s: float | None = 0.5
        self.problem: str | None = None
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


@dataclass
class Service:
    """A service on loopback, with what tests look at."""

    url: str
    http: httpx.Client
    database: Database
    background: FakeBackground
    settings: Settings

    def submit(self, **changes: Any) -> str:
        response = self.http.post("/v1/experiments", json={**SPEC, **changes})
        assert response.status_code == 202, response.text
        return str(response.json()["id"])


@contextmanager
def running(settings: Settings, background: FakeBackground) -> Iterator[Service]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(
        create_app(settings, background=background),
        lifespan="on",
        log_config=None,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the service did not start"
            time.sleep(0.01)
        with httpx.Client(base_url=url, timeout=30) as http, Database(settings.database_url) as database:
            yield Service(url, http, database, background, settings)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


Start = Callable[..., Service]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a service with a database of its own; settings by keyword."""
    with ExitStack() as stack:

        def begin(**changes: Any) -> Service:
            settings = Settings(data_dir=tmp_path, **changes)
            return stack.enter_context(running(settings, FakeBackground()))

        yield begin


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for all tests of a file, which must not mind each other's experiments."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("service"))
    with running(settings, FakeBackground()) as found:
        yield found
