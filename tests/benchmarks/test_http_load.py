"""The client of the load: whole answers however they are sent, on one connection while the server keeps it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.http_load import Ask, Connection, closed_loop

LONG = b"x" * 700_000


class _Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.ports.append(self.client_address[1])  # type: ignore[attr-defined]
        if self.path == "/refused":
            self.send_response(418)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        elif self.path == "/parts":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in (body, LONG):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
        elif self.path == "/last":
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)
        else:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"half")
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def echo() -> Iterator[tuple[str, list[int]]]:
    """A server's URL, and from which port each of its requests came."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Echo) as server:
        ports: list[int] = []
        server.ports = ports  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", ports
        finally:
            server.shutdown()
            thread.join()


def test_answers_are_whole_on_one_connection_until_the_server_ends_it() -> None:
    with echo() as (url, ports), Connection(url) as connection:
        for number in range(3):
            assert connection.ask(Ask("POST", "/parts", b"%d" % number)) == b"%d" % number + LONG
        assert len(set(ports)) == 1
        assert connection.ask(Ask("POST", "/last", b"end")) == b"end"
        assert connection.ask(Ask("POST", "/parts", b"again")) == b"again" + LONG
        assert len(set(ports)) == 2


def test_a_refusal_and_half_an_answer_are_errors() -> None:
    with echo() as (url, _):
        with Connection(url) as connection, pytest.raises(RuntimeError, match="418 b'why'"):
            connection.ask(Ask("POST", "/refused", b"why"))
        with (
            Connection(url) as connection,
            pytest.raises(ConnectionResetError, match="before its answer's end"),
        ):
            connection.ask(Ask("POST", "/half", b"body"))


def test_a_load_counts_what_was_answered_and_tells_what_went_wrong() -> None:
    with echo() as (url, ports):
        load = closed_loop(url, 2, 60.0, lambda client: iter([Ask("POST", "/last", b"%d" % client)] * 5))
        assert len(load.latencies_s) == len(ports) == 10
        with pytest.raises(RuntimeError, match="418"):
            closed_loop(url, 2, 60.0, lambda _client: iter([Ask("POST", "/refused", b"")]))
