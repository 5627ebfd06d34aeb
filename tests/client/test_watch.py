"""Watching: told by events, resumed after a cut, asking where there is no stream."""

import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from client.client import GhostwattClient
from client.errors import Refused, ServiceUnreachable, TimedOut
from tests.client.answers import experiment, problem

Handler = Callable[[httpx.Request], httpx.Response]


def client(handler: Handler) -> GhostwattClient:
    return GhostwattClient("http://127.0.0.1:8411", transport=httpx.MockTransport(handler))


def event(number: int, to: str = "running") -> bytes:
    data = {
        "id": number, "kind": "state", "experiment_id": "exp-1", "run_id": None, "attempt": 1,
        "at": "2026-01-01T00:00:00Z", "is_last": to == "succeeded", "data": {"to": to},
    }  # fmt: skip
    return f"id: {number}\nevent: state\ndata: {json.dumps(data)}\n\n".encode()


class FakeService:
    """Streams what it is given, one list of pieces per connection; an exception in it breaks the connection."""

    def __init__(self, *connections: list[bytes | Exception]) -> None:
        self.connections = list(connections)
        self.resumed_after: list[str | None] = []
        self.asked = 0
        self.state = "running"

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/events"):
            self.asked += 1
            return experiment(self.state)
        self.resumed_after.append(request.headers.get("last-event-id"))
        pieces = self.connections.pop(0)

        def body() -> Iterator[bytes]:
            for piece in pieces:
                if isinstance(piece, Exception):
                    raise piece
                if b"succeeded" in piece:
                    self.state = "succeeded"
                yield piece

        return httpx.Response(200, content=body(), headers={"Content-Type": "text/event-stream"})


def quiet(_seconds: float) -> None:
    """Sleeps not at all."""


def test_it_looks_when_it_is_told_to_and_ends_with_the_experiment() -> None:
    service = FakeService([b"retry: 1000\n\n", event(1), event(2, "succeeded")])
    seen: list[str] = []
    found = client(service).watch("exp-1", on_change=lambda each: seen.append(each.state), sleep=quiet)
    assert found.state == "succeeded"
    assert seen == ["running", "running", "succeeded"]


def test_a_broken_stream_is_resumed_after_the_last_whole_event() -> None:
    broken = httpx.ReadError("the network is gone")
    service = FakeService(
        [event(1), event(2) + event(3)[:20], broken], [broken], [event(3), event(4, "succeeded")]
    )
    assert client(service).watch("exp-1", sleep=quiet).state == "succeeded"
    assert service.resumed_after == [None, "2", "2"]


def test_a_stream_that_ends_early_is_resumed() -> None:
    service = FakeService([event(1)], [event(2)], [event(3, "succeeded")])
    assert client(service).watch("exp-1", sleep=quiet).state == "succeeded"
    assert service.resumed_after == [None, "1", "2"]


@pytest.mark.parametrize(
    "answer",
    [problem(503, "too-many-streams"), problem(429), problem(404), httpx.Response(200, json={"a": "proxy"})],
)
def test_without_a_stream_it_asks(answer: httpx.Response) -> None:
    states = ["running", "running", "succeeded"]

    def service(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events"):
            return answer
        return experiment(states.pop(0))

    assert client(service).watch("exp-1", sleep=quiet).state == "succeeded"
    assert not states


def test_an_unknown_experiment_is_refused() -> None:
    with pytest.raises(Refused):
        client(lambda request: problem(404)).watch("exp-1", sleep=quiet)


def test_patience_has_an_end() -> None:
    def nobody(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(ServiceUnreachable):
        client(nobody).watch("exp-1", patience_s=0, sleep=quiet)
    with pytest.raises(TimedOut, match="it goes on"):
        client(nobody).watch("exp-1", timeout_s=0, sleep=quiet)


def test_events_are_given_one_by_one_across_connections() -> None:
    service = FakeService([event(1) + event(2)], [event(3, "succeeded")])
    assert [each.id for each in client(service).events("exp-1")] == [1, 2, 3]
    assert service.asked == 0
    with pytest.raises(Refused):
        next(client(lambda request: problem(404)).events("exp-1"))


def test_events_can_be_resumed_by_whoever_kept_an_id() -> None:
    service = FakeService([event(3, "succeeded")])
    assert [each.id for each in client(service).events("exp-1", after=2)] == [3]
    assert service.resumed_after == ["2"]
