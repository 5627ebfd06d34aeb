"""Load on an HTTP server: clients that ask one thing after the other, or asks at a given rate; latencies kept.

A connection is kept open, a request is sent in one piece and its answer read by llhttp: what the client takes of the
cores it takes from the server, and from a quick server more than from a slow one.
"""

import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from urllib.parse import urlsplit

import httptools
import numpy as np

TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Ask:
    """One request."""

    method: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Load:
    """What a load gave."""

    seconds: float
    """From the first request to the last answer."""
    latencies_s: list[float]
    """Of every answered request; at a given rate, from the moment at which it should have been sent."""

    @property
    def per_second(self) -> float:
        """Answers a second."""
        return len(self.latencies_s) / self.seconds

    def quantile_ms(self, share: float) -> float:
        """Latency that this share of the requests kept, milliseconds."""
        return 1_000 * float(np.quantile(self.latencies_s, share))


class Connection:
    """One kept-open connection, made when it is first used; a context manager."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None, url
        self._address = (parts.hostname, parts.port or 80)
        self._socket: socket.socket | None = None

    def ask(self, ask: Ask) -> bytes:
        """Sends a request and reads the whole answer.

        Raises:
            RuntimeError: The server refused.
            OSError: It can't be reached, or closed the connection before the answer was whole.
        """
        if self._socket is None:
            self._socket = socket.create_connection(self._address, TIMEOUT_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(self._request(ask))
        answer = _Answer()
        while not answer.is_whole:
            data = self._socket.recv(1 << 18)
            if not data:
                raise ConnectionResetError(
                    f"{ask.method} {ask.path}: the server closed before its answer's end"
                )
            answer.parser.feed_data(data)
        if not answer.is_to_be_continued:
            self.close()
        body, status = b"".join(answer.parts), answer.parser.get_status_code()
        if status >= 300:
            raise RuntimeError(f"{ask.method} {ask.path}: {status} {body[:500]!r}")
        return body

    def _request(self, ask: Ask) -> bytes:
        body = ask.body or b""
        host, port = self._address
        headers = {"Host": f"{host}:{port}", "Accept-Encoding": "identity", **ask.headers}
        if body:
            headers["Content-Length"] = str(len(body))
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{ask.method} {ask.path} HTTP/1.1\r\n{lines}\r\n".encode() + body

    def close(self) -> None:
        """Closes it; the next request makes another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Answer:
    """What the parser makes of an answer."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.parts: list[bytes] = []
        self.is_whole = self.is_to_be_continued = False

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)

    def on_message_complete(self) -> None:
        self.is_whole = True
        # The parser knows until this returns.
        self.is_to_be_continued = self.parser.should_keep_alive()


def ask_once(url: str, ask: Ask) -> bytes:
    """One request on a connection of its own."""
    with Connection(url) as connection:
        return connection.ask(ask)


def closed_loop(url: str, clients: int, seconds: float, asks: Callable[[int], Iterator[Ask]]) -> Load:
    """Clients that each ask, wait for the answer and ask again.

    Args:
        url: The server.
        clients: How many at a time.
        seconds: For how long.
        asks: Requests of client i, in order; the load ends early where one has no more.
    """
    end = time.perf_counter() + seconds

    def work(client: int, latencies: list[float]) -> None:
        with Connection(url) as connection:
            for ask in asks(client):
                began = time.perf_counter()
                if began >= end:
                    return
                connection.ask(ask)
                latencies.append(time.perf_counter() - began)

    return _together(clients, work)


def open_loop(url: str, clients: int, seconds: float, per_second: float, make: Callable[[int], Ask]) -> Load:
    """Requests at fixed moments, whether or not earlier ones were answered; waiting counts as latency."""
    total = round(seconds * per_second)
    numbers = count()
    start = time.perf_counter() + 0.1

    def work(_client: int, latencies: list[float]) -> None:
        with Connection(url) as connection:
            while (number := next(numbers)) < total:
                due = start + number / per_second
                time.sleep(max(0.0, due - time.perf_counter()))
                connection.ask(make(number))
                latencies.append(time.perf_counter() - due)

    return _together(clients, work)


def one_by_one(url: str, asks: Sequence[Ask], turns: int) -> Load:
    """One client that asks for each in turn."""
    return closed_loop(url, 1, float("inf"), lambda _client: iter(list(asks) * turns))


@contextmanager
def _without_collections() -> Iterator[None]:
    """What a benchmark has loaded takes a tenth of a second to walk, which would count as the server's."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _together(clients: int, work: Callable[[int, list[float]], None]) -> Load:
    latencies: list[list[float]] = [[] for _ in range(clients)]
    failures: list[BaseException] = []

    def guarded(client: int) -> None:
        try:
            work(client, latencies[client])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(client,)) for client in range(clients)]
    with _without_collections():
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - began
    if failures:
        raise failures[0]
    return Load(seconds, [latency for each in latencies for latency in each])
