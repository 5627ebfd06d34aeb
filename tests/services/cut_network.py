"""A network between jobs and the service that a test cuts and mends: a small proxy that copies bytes."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self


class CutNetwork:
    """Listens on a port of its own and passes all on to another; a context manager."""

    def __init__(self, to_port: int) -> None:
        self._to = ("127.0.0.1", to_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._is_cut = False
        self._loses_answers = False
        self.lost_answers = 0
        """Answers, or parts of them, that the service gave and nobody got."""
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @contextmanager
    def cut(self) -> Iterator[None]:
        """No connection lives and none comes about meanwhile."""
        with self._lock:
            self._is_cut = True
            broken = list(self._open)
        for connection in broken:
            _hang_up(connection)
        try:
            yield
        finally:
            with self._lock:
                self._is_cut = False

    @contextmanager
    def losing_answers(self) -> Iterator[None]:
        """The service gets every request meanwhile, and its answers get lost with their connections."""
        self._loses_answers = True
        try:
            yield
        finally:
            self._loses_answers = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._is_cut = True
            left = [*self._open, self._listener]
        for connection in left:
            _hang_up(connection)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(caller,), daemon=True).start()

    def _connect(self, caller: socket.socket) -> None:
        with caller:
            if self._is_cut:
                return
            try:
                service = socket.create_connection(self._to, timeout=10)
            except OSError:
                return
            with service:
                service.settimeout(None)
                with self._lock:
                    if self._is_cut:
                        return
                    self._open |= {caller, service}
                answers = threading.Thread(target=self._copy, args=(service, caller, True), daemon=True)
                answers.start()
                self._copy(caller, service, False)
                answers.join()
                with self._lock:
                    self._open -= {caller, service}

    def _copy(self, source: socket.socket, to: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if is_answer and self._loses_answers:
                    self.lost_answers += 1
                    break
                to.sendall(data)
        for end in (source, to):
            _hang_up(end)


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
