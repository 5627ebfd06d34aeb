"""What is written straight to a socket: no HTTP at all, half of it, or answers that nobody reads."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from api.wire import Wire
from api.wire_h11 import H11Wire
from api.wire_llhttp import LlhttpWire
from services import job_logs
from services.log_parts import LogPart
from services.settings import Settings
from tests.api.serving import FakeBackground, Service, running
from tests.running import wait_until
from tests.services.simulated_job import begun

PATIENCE_S = 0.3
WAIT_S = 120.0
MOST_PIECES = 990
"""Fewer than the longest body announced here, and than may be in headers."""


class Impatience(Wire):
    """The same within a test's patience, for headers where a test says so (`impatient`); of one kind at a time."""

    look_s = 0.05
    headers_s = 600.0
    stalled_s = 0.5
    cut_off = threading.Semaphore(0)
    made: ClassVar[list["Impatience"]] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.made.append(self)

    def has_heard(self) -> bool:
        """Whether something came."""
        return self._pieces > 0

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.cut_off.release()


class ImpatientH11(Impatience, H11Wire):
    pass


class ImpatientLlhttp(Impatience, LlhttpWire):
    pass


@pytest.fixture(scope="module", params=[ImpatientH11, ImpatientLlhttp])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("wire"))
    with running(settings, FakeBackground(), wire=request.param) as found:
        yield found


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when it is called, requests have a moment to arrive: what has been sent is there by then."""
    return lambda: monkeypatch.setattr(Impatience, "headers_s", PATIENCE_S)


def connected(service: Service) -> socket.socket:
    host, port = service.url.removeprefix("http://").split(":")
    number = len(Impatience.made)
    connection = socket.create_connection((host, int(port)), timeout=WAIT_S)
    wait_until(lambda: len(Impatience.made) > number, WAIT_S, "connection", every_s=0.002)
    return connection


def wait_until_heard() -> None:
    """Until something of the last connection has come."""
    wait_until(Impatience.made[-1].has_heard, WAIT_S, "word from it", every_s=0.002)


def all_of(connection: socket.socket) -> bytes:
    found = b""
    while True:
        try:
            piece = connection.recv(65_536)
        except ConnectionResetError:
            # An answer to a part of what was sent, while the rest was on its way, is followed by this.
            if not found:
                raise
            return found
        if not piece:
            return found
        found += piece


def answer_of(connection: socket.socket) -> bytes:
    """One answer, after which the connection may stay open."""

    def more() -> bytes:
        piece = connection.recv(65_536)
        assert piece, "it ended in mid-answer"
        return piece

    found = more()
    while b"\r\n\r\n" not in found:
        found += more()
    head, _, body = found.partition(b"\r\n\r\n")
    (length,) = [
        int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
    ]
    while len(body) < length:
        body += more()
    return head + b"\r\n\r\n" + body


def problem_of(answer: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    assert "content-type: application/problem+json" in lines
    assert "x-content-type-options: nosniff" in lines
    document: dict[str, Any] = json.loads(body)
    assert f"x-request-id: {document['request_id']}" in lines
    return int(lines[0].split()[1]), document


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost : b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\r\n folded: header\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 40_000,
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"x" * 40_000,
    ],
)
def test_what_is_no_request_is_a_problem_document(service: Service, sent: bytes) -> None:
    with connected(service) as connection:
        connection.sendall(sent)
        if sent.startswith(b"\x16"):
            connection.shutdown(socket.SHUT_WR)
        status, problem = problem_of(answer_of(connection))
    assert status in (400, 405, 408, 431)
    assert problem["status"] == status


def test_a_length_beside_chunks_smuggles_nothing(service: Service) -> None:
    smuggled = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(service) as connection:
        connection.sendall(
            b"POST /v1/queue/resume HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled
        )
        answer = all_of(connection)
    assert problem_of(answer)[1]["code"] == "ambiguous-length"
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "headers",
    [b"X-Long: " + b"x" * 40_000 + b"\r\n", b"X-Many: x\r\n" * 101, b"X-Part: " + b"y" * 300 + b"\r\n"],
    ids=["long", "many", "long altogether"],
)
def test_headers_are_bounded(service: Service, headers: bytes) -> None:
    repeated = headers * 120 if headers.startswith(b"X-Part") else headers
    with connected(service) as connection:
        connection.sendall(
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + repeated + b"\r\n"
        )
        status, problem = problem_of(all_of(connection))
    assert (status, problem["code"]) == (431, "headers-too-long")


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Half: "])
def test_a_request_that_does_not_arrive_is_given_up(
    service: Service, sent: bytes, impatient: Callable[[], None]
) -> None:
    with connected(service) as connection:
        if sent:
            connection.sendall(sent)
            wait_until_heard()
        impatient()
        status, problem = problem_of(all_of(connection))
    assert (status, problem["code"]) == (408, "request-timeout")


def test_a_byte_now_and_then_keeps_no_connection(service: Service, impatient: Callable[[], None]) -> None:
    def trickle(connection: socket.socket) -> None:
        for _ in range(MOST_PIECES):
            connection.sendall(b"X: y\r\n")
            time.sleep(0.05)

    impatient()
    with connected(service) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        with pytest.raises(ConnectionError):
            trickle(connection)


def test_a_second_request_of_a_connection_has_its_own_time(
    service: Service, impatient: Callable[[], None]
) -> None:
    with connected(service) as connection:
        for _ in range(4):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while not answer.endswith(b'{"status":"ok"}'):
                answer += connection.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 200")
            impatient()
            time.sleep(1.5 * PATIENCE_S)
        connection.sendall(b"GET /heal")
        assert problem_of(all_of(connection))[0] == 408


def test_whoever_reads_no_more_is_cut_off(service: Service) -> None:
    identifier, _, _ = begun(service.database)
    job_logs.store(service.database, identifier, 1, LogPart(0, (b"y" * 79 + b"\n") * 20_000), ended=False)
    ask = (
        f"GET /v1/experiments/{identifier}/log HTTP/1.1\r\nHost: localhost\r\nRange: bytes=0-1048575\r\n\r\n"
    ).encode()
    with connected(service) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        while Impatience.cut_off.acquire(blocking=False):
            pass
        # Answers pile up until nothing more goes into the socket; the connection stays open at this end.
        connection.sendall(ask * 30)
        assert Impatience.cut_off.acquire(timeout=WAIT_S)
    assert service.http.get("/healthz").status_code == 200


def test_what_comes_after_a_body_is_no_header(service: Service) -> None:
    with connected(service) as connection:
        connection.sendall(
            b"POST /v1/queue/pause HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2\r\n{}\r\n0\r\nContent-Type: application/json\r\nX-Request-ID: trailing\r\n\r\n"
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        answer = all_of(connection)
    assert b"trailing" not in answer
    assert answer.count(b"HTTP/1.1 ") == 2


def test_earlier_requests_are_answered_before_what_is_none(service: Service) -> None:
    with connected(service) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3 + b"nonsense\r\n\r\n")
        answer = all_of(connection)
    assert answer.count(b"HTTP/1.1 200") == 3
    assert answer.count(b'{"status":"ok"}') == 3
    assert b"HTTP/1.1 400" in answer.rpartition(b'{"status":"ok"}')[2]


def test_many_requests_at_once_are_answered_in_order_or_refused(service: Service) -> None:
    asks = b"".join(
        f"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: ask-{number}\r\n"
        f"Connection: {'close' if number == 199 else 'keep-alive'}\r\n\r\n".encode()
        for number in range(200)
    )
    with connected(service) as connection:
        connection.sendall(asks)
        answers = all_of(connection).decode().split("HTTP/1.1 ")[1:]
    statuses = [int(answer[:3]) for answer in answers]
    assert statuses[:60] == [200] * 60
    assert all(f"ask-{number}\r\n" in answers[number] for number in range(60))
    assert set(statuses[60:]) <= {200, 429}


def test_another_protocol_is_not_spoken(service: Service) -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    with connected(service) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + upgrade + b"\r\n")
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = all_of(connection)
    assert answer.count(b"HTTP/1.1 200") == 2


def test_the_rest_of_a_refused_body_does_not_keep_a_connection(
    service: Service, impatient: Callable[[], None]
) -> None:
    def trickle(connection: socket.socket) -> None:
        for _ in range(MOST_PIECES):
            connection.sendall(b"x")
            time.sleep(0.05)

    impatient()
    with connected(service) as connection:
        connection.sendall(
            b"POST /v1/experiments HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 999\r\n\r\n"
        )
        with pytest.raises(ConnectionError):
            trickle(connection)
