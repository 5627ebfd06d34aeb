"""Live event streams that are only read, for `benchmarks/service.py`: one thread, one socket for each."""

import selectors
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit


@contextmanager
def watching(url: str, experiments: Sequence[str]) -> Iterator[None]:
    """Keeps a stream of each named experiment open and reads what comes.

    Raises:
        RuntimeError: A stream was refused or ended before it was let go.
    """
    parts = urlsplit(url)
    problems: list[str] = []
    stop = threading.Event()
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for experiment in experiments:
            connection = stack.enter_context(
                socket.create_connection((parts.hostname, parts.port), timeout=30)
            )
            request = f"GET /v1/experiments/{experiment}/events HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            connection.sendall(f"{request}Accept: text/event-stream\r\n\r\n".encode())
            head = connection.recv(65536)
            if b" 200 " not in head.split(b"\r\n", 1)[0]:
                raise RuntimeError(f"the stream of {experiment} was refused: {head[:300]!r}")
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ, experiment)

        def read() -> None:
            while not stop.is_set():
                for key, _ in selector.select(timeout=0.2):
                    stream = key.fileobj
                    assert isinstance(stream, socket.socket)
                    if not stream.recv(65536):
                        problems.append(str(key.data))
                        selector.unregister(stream)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield
        finally:
            stop.set()
            reader.join()
    if problems:
        raise RuntimeError(f"streams ended early: {problems}")
