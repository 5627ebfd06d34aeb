"""Reads event streams, for tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from client.event_stream import EventParser
from client.models import Occurrence

Stream = Iterator[Occurrence]


@contextmanager
def watched(
    http: httpx.Client, identifier: str, after: int | None = None, **headers: str
) -> Iterator[Stream]:
    """An experiment's events; the connection is cut at the block's end."""
    sent = headers if after is None else {**headers, "Last-Event-ID": str(after)}
    with http.stream("GET", f"/v1/experiments/{identifier}/events", headers=sent) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield occurrences(response)


def occurrences(response: httpx.Response) -> Stream:
    parser = EventParser()
    for chunk in response.iter_bytes():
        for event in parser.feed(chunk):
            if event.kind != "deleted" and event.data:
                yield Occurrence.model_validate_json(event.data)


def told(http: httpx.Client, identifier: str, after: int | None = None) -> list[Any]:
    """Everything until the stream ends."""
    with watched(http, identifier, after) as stream:
        return list(stream)
