import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.settings import Settings
from tests.api.serving import Ask, FakeBackground, Service, Start, running


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
