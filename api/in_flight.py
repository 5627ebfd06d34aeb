"""Submissions under way, by Idempotency-Key: a repeat that comes before the answer is told so instead of waiting.

Of one process. Where the first is under way in another process of the service, the database makes the repeat wait until
that one is written or undone, and then answers with what it made.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from api.errors import ApiError


class RequestInFlight(ApiError):
    """409: the first request with this key has not been answered yet."""

    def __init__(self) -> None:
        super().__init__(
            409,
            "request-in-flight",
            "a request with this Idempotency-Key is under way; send it again in a moment for its answer",
            headers={"Retry-After": "1"},
        )


class InFlight:
    """May be used by any number of threads."""

    def __init__(self) -> None:
        self._under_way: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    @contextmanager
    def alone(self, caller: str, key: str | None) -> Iterator[None]:
        """Holds a caller's key while its request is under way; without a key it does nothing.

        Raises:
            RequestInFlight: Another request of the caller holds it.
        """
        if key is None:
            yield
            return
        with self._lock:
            if (caller, key) in self._under_way:
                raise RequestInFlight
            self._under_way.add((caller, key))
        try:
            yield
        finally:
            with self._lock:
                self._under_way.discard((caller, key))
