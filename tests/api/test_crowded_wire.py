"""As many connections as there may be: which of them give way to a new one, and what it hears if none does."""

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import ClassVar

import pytest

from api.wire import Wire
from api.wire_h11 import H11Wire
from api.wire_llhttp import LlhttpWire
from services.settings import Settings
from tests.api.serving import FakeBackground, Service, running
from tests.running import wait_until
from tests.services.simulated_job import begun

MOST = 4
WAIT_S, LOOK_S = 120.0, 0.002
BEGUN = (
    b"POST /v1/experiments:validate HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: 999\r\n\r\n{"
)
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


class Crowded(Wire):
    """Few connections, which are looked at often; nothing ends by itself within a test."""

    look_s = 0.05
    headers_s = 600.0
    leaving_s = 0.3
    most_connections = MOST
    most_newcomers = 1
    made: ClassVar[list["Crowded"]] = []
    lost: ClassVar[list["Crowded"]] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.made.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.lost.append(self)

    def has_heard(self) -> bool:
        """Whether something came, or no longer will."""
        return self._pieces > 0 or self.transport.is_closing()

    def stands_still(self) -> bool:
        """Whether a part of a body has been missing for longer than from one look to the next."""
        return self._silent_since_s is not None


class CrowdedH11(Crowded, H11Wire):
    pass


class CrowdedLlhttp(Crowded, LlhttpWire):
    pass


@pytest.fixture(scope="module", params=[CrowdedH11, CrowdedLlhttp])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("crowded"))
    with running(settings, FakeBackground(), wire=request.param) as found:
        yield found


class Crowd:
    """Connections of one test, made in order."""

    def __init__(self, service: Service, stack: ExitStack) -> None:
        host, port = service.url.removeprefix("http://").split(":")
        self._address, self._stack = (host, int(port)), stack

    def add(self, sent: bytes) -> socket.socket:
        number = len(Crowded.made)
        connection = self._stack.enter_context(socket.create_connection(self._address, timeout=WAIT_S))
        wait_until(lambda: len(Crowded.made) > number, WAIT_S, "connection", every_s=LOOK_S)
        if sent:
            connection.sendall(sent)
            wait_until(Crowded.made[-1].has_heard, WAIT_S, "word from it", every_s=LOOK_S)
        time.sleep(0.005)  # the loop's clock has milliseconds, and no two of them are to be of one age
        return connection

    def add_still(self) -> socket.socket:
        """One that has sent the beginning of a body, and been found to send no more."""
        connection = self.add(BEGUN)
        wait_until(Crowded.made[-1].stands_still, WAIT_S, "silence", every_s=LOOK_S)
        time.sleep(0.005)
        return connection

    def add_answered(self) -> socket.socket:
        connection = self.add(HEALTH + b"\r\n")
        assert read(connection, until=b'{"status":"ok"}').startswith(b"HTTP/1.1 200")
        time.sleep(0.005)  # its age as one that waits counts from its answer
        return connection

    def asks(self) -> bytes:
        """What somebody new gets to hear."""
        return read(self.add(HEALTH + b"Connection: close\r\n\r\n"))


@pytest.fixture
def crowd(service: Service) -> Iterator[Crowd]:
    with ExitStack() as stack:
        yield Crowd(service, stack)
    wait_until(lambda: len(Crowded.lost) == len(Crowded.made), WAIT_S, "end of all", every_s=LOOK_S)


def read(connection: socket.socket, *, until: bytes | None = None) -> bytes:
    found = b""
    while until is None or not found.endswith(until):
        piece = connection.recv(65_536)
        if not piece:
            break
        found += piece
    return found


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    finally:
        connection.settimeout(WAIT_S)


def crowded_out(answer: bytes) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head:
        return False
    lines = head.decode().lower().split("\r\n")
    assert lines[0].startswith("http/1.1 503")
    assert {"content-type: application/problem+json", "retry-after: 1", "connection: close"} <= set(lines)
    assert json.loads(body)["code"] == "too-many-connections"
    return True


def test_whoever_has_sent_no_head_gives_way_the_oldest_first(crowd: Crowd) -> None:
    silent, slow, *others = [crowd.add(part) for part in (b"", b"G", HEALTH, b"GET /v1")]
    assert crowd.asks().startswith(b"HTTP/1.1 200")
    assert crowded_out(read(silent))
    assert is_open(slow)
    newer = [crowd.add(b"") for _ in range(2)]
    assert crowded_out(read(slow))
    assert all(is_open(each) for each in [*others, *newer])


def test_many_who_send_a_byte_keep_nobody_out(crowd: Crowd) -> None:
    for _ in range(5 * MOST):
        crowd.add(b"G")
    assert [crowd.asks()[:12] for _ in range(5)] == [b"HTTP/1.1 200"] * 5


def test_connections_that_wait_for_another_request_give_way_after_those_without_a_head(crowd: Crowd) -> None:
    kept = [crowd.add_answered() for _ in range(MOST - 1)]
    headless = crowd.add(b"G")
    assert crowd.asks().startswith(b"HTTP/1.1 200")
    assert crowded_out(read(headless))
    assert all(is_open(each) for each in kept)
    kept[0].sendall(HEALTH + b"\r\n")
    read(kept[0], until=b'{"status":"ok"}')
    crowd.add_answered()
    crowd.add_answered()
    assert read(kept[1]) == b""  # nothing was asked, so nothing is answered
    assert is_open(kept[0])


@pytest.mark.parametrize(
    ("host", "status"), [(b"localhost", b"415"), (b"evil.example", b"421")], ids=["limits", "doors"]
)
def test_a_refused_body_is_not_waited_for_while_others_wait(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch, host: bytes, status: bytes
) -> None:
    monkeypatch.setattr("api.limits.DRAIN_S", 10 * WAIT_S)
    ask = (
        b"POST /v1/experiments HTTP/1.1\r\nHost: %s\r\nContent-Encoding: gzip\r\nContent-Length: 999\r\n\r\n"
    )
    refused = [crowd.add(ask % host) for _ in range(MOST)]
    assert crowd.asks().startswith(b"HTTP/1.1 200")
    assert read(refused[0]).startswith(b"HTTP/1.1 " + status)


def test_a_body_that_stands_still_gives_way_last(crowd: Crowd) -> None:
    still = [crowd.add_still() for _ in range(MOST - 1)]
    kept = crowd.add_answered()
    assert crowd.asks().startswith(b"HTTP/1.1 200")
    assert read(kept) == b""
    crowd.add_answered()
    assert all(is_open(each) for each in still)


def test_where_all_are_busy_a_newcomer_is_told_so(service: Service, crowd: Crowd) -> None:
    identifier, _, _ = begun(service.database)
    watch = f"GET /v1/experiments/{identifier}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    streams = [crowd.add(watch) for _ in range(MOST)]
    for each in streams:
        assert each.recv(65_536).startswith(b"HTTP/1.1 200")
    assert crowded_out(crowd.asks())
    waiting = crowd.add(b"")
    assert crowded_out(read(crowd.add(b"")))  # more wait than may: it needn't even ask
    gone = len(Crowded.lost)
    streams.pop().close()
    wait_until(lambda: len(Crowded.lost) > gone, WAIT_S, "end of one", every_s=LOOK_S)
    waiting.sendall(HEALTH + b"Connection: close\r\n\r\n")
    assert read(waiting).startswith(b"HTTP/1.1 200")
    assert all(is_open(each) for each in streams)


def test_bodies_that_stand_still_make_room_when_nothing_else_does(crowd: Crowd) -> None:
    still = [crowd.add_still() for _ in range(MOST)]
    assert crowd.asks().startswith(b"HTTP/1.1 200")
    assert crowded_out(read(still[0]))
    assert all(is_open(each) for each in still[1:])
