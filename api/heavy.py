"""Documents that cost seconds of computing to read: one at a time, few that wait, the rest is told to come back.

A long YAML text takes some seconds of Python, in which every other thread gets half of a core. Forty of them at once,
which one caller can send, would keep everybody else waiting for minutes.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from api.errors import ApiError

HEAVY_YAML_BYTES = 8 * 1024
"""YAML that is longer waits for its turn; specs that people write are shorter."""
HEAVY_JSON_BYTES = 128 * 1024
"""JSON that is longer does, too."""
WAITING = 4
"""Most that wait."""


class TooManyHeavy(ApiError):
    """503: others' long documents are being read."""

    def __init__(self) -> None:
        super().__init__(
            503,
            "busy",
            f"other long documents are being read; try again, or send less than {HEAVY_YAML_BYTES // 1024} KiB of "
            f"YAML or {HEAVY_JSON_BYTES // 1024} KiB of JSON, which waits for nobody",
            headers={"Retry-After": "5"},
        )


class HeavyDocuments:
    """Who may read a long document now; used by threads."""

    def __init__(self) -> None:
        self._places = threading.Semaphore(1 + WAITING)
        self._turn = threading.Lock()

    @contextmanager
    def turn(self, *, is_heavy: bool) -> Iterator[None]:
        """Waits for a long document's turn; a short one has it at once.

        Raises:
            TooManyHeavy: Too many wait already.
        """
        if not is_heavy:
            yield
            return
        if not self._places.acquire(blocking=False):
            raise TooManyHeavy
        try:
            with self._turn:
                yield
        finally:
            self._places.release()
