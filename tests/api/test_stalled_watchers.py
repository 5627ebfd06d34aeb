"""Watchers that stop reading."""

import asyncio

from starlette.types import Message

from api.event_response import EventResponse
from api.streams import Streams
from tests.api.serving import Service


def test_a_watcher_that_stops_reading_gives_its_place_back(service: Service) -> None:
    identifier = service.submit()

    async def never() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async def stuck(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def watch() -> int:
        async with Streams(service.database) as streams:
            stream = await streams.open("somebody", identifier, 0)
            assert stream is not None
            assert streams.count == 1
            scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}}
            async with asyncio.timeout(30):
                await EventResponse(stream, stalled_s=0.05)(scope, never, stuck)
            return streams.count

    assert asyncio.run(watch()) == 0
