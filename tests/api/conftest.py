import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

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
