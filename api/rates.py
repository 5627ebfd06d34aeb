"""How often one caller may ask: a bucket of tokens for each, refilled steadily, in the memory of this process.

It protects a service from a loop gone wild, not from a crowd; several processes limit each for itself.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from api.errors import ApiError

REQUESTS_PER_S = 1_000.0
"""Steady rate of one caller."""
BURST = 2_000.0
"""Requests that a caller who was quiet may send at once."""
REMEMBERED_CALLERS = 10_000
"""Callers that are kept in mind; the one who was quiet for longest is forgotten first."""


class TooManyRequests(ApiError):
    """429: try again later."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(
            429,
            "too-many-requests",
            f"more requests than {REQUESTS_PER_S:g} a second from one caller; wait {wait_s:.1f} s",
            headers={"Retry-After": str(max(1, round(wait_s)))},
        )


class RateLimiter:
    """Buckets of all callers; may be used by any number of threads."""

    def __init__(
        self,
        requests_per_s: float = REQUESTS_PER_S,
        burst: float = BURST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Sets the rate.

        Args:
            requests_per_s: Tokens that every bucket gains per second.
            burst: Tokens that a bucket holds.
            clock: Monotonic seconds.
        """
        self._rate = requests_per_s
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, caller: str) -> None:
        """Takes nothing.

        Raises:
            TooManyRequests: A caller's bucket is empty.
        """
        with self._lock:
            if caller not in self._buckets:
                return
            tokens, then = self._buckets[caller]
            tokens += (self._clock() - then) * self._rate
        if tokens < 1:
            raise TooManyRequests((1 - tokens) / self._rate)

    def take(self, caller: str) -> None:
        """Takes one token of a caller's bucket.

        Raises:
            TooManyRequests: It is empty.
        """
        with self._lock:
            moment = self._clock()
            tokens, then = self._buckets.pop(caller, (self._burst, moment))
            tokens = min(self._burst, tokens + (moment - then) * self._rate)
            enough = tokens >= 1
            self._buckets[caller] = (tokens - 1 if enough else tokens, moment)
            if len(self._buckets) > REMEMBERED_CALLERS:
                self._buckets.popitem(last=False)
        if not enough:
            raise TooManyRequests((1 - tokens) / self._rate)
