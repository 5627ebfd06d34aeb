"""What goes wrong in the service's background: it is said once, tried again, and none of the other work's business.

What can be expected, such as a database that is away, is tried again at once. What nobody expected is a fault of the
service's own: it is tried again more and more rarely, its traceback is logged once per kind, and `/readyz` tells of it.
"""

import logging
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from services.errors import DatabaseError, LeaseLost
from services.ray_requests import ClusterError

log = logging.getLogger(__name__)

EXPECTED: tuple[type[Exception], ...] = (DatabaseError, ClusterError, LeaseLost)
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
MOST_PARTS = 1_000
"""What is remembered at most; of parts that are never tried again the oldest go first."""
MOST_TOLD = 5

Result = TypeVar("Result")


@dataclass
class _Mishap:
    since_s: float
    failures: int = 0
    unexpected: str | None = None
    """Type of the last error, if nobody expected it."""
    not_before_s: float = 0.0
    kinds: set[str] = field(default_factory=set)


class Mishaps:
    """Does the parts of a work of which each may fail."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Args: a monotonic clock."""
        self._clock_s = clock_s
        self._mishaps: dict[str, _Mishap] = {}
        self._lock = threading.Lock()

    def attempt(
        self,
        part: str,
        work: Callable[[], Result],
        otherwise: Result,
        *,
        longest_pause_s: float = LONGEST_PAUSE_S,
        expected: tuple[type[Exception], ...] = EXPECTED,
    ) -> Result:
        """Does one part, unless it failed a moment ago.

        Args:
            part: What it is, for people; the same for every try.
            work: Does it.
            otherwise: What comes back if it fails or must wait.
            longest_pause_s: Seconds at most between a failure that nobody expected and the next try.
            expected: Types of what this part can be expected to raise.
        """
        mishap = self._mishaps.get(part)
        if mishap is not None and self._clock_s() < mishap.not_before_s:
            return otherwise
        try:
            result = work()
        except Exception as error:
            self._note(part, error, longest_pause_s, expected)
            return otherwise
        if mishap is not None:
            log.info("%s: works again after %d failures", part, mishap.failures)
            self.forget(part)
        return result

    def failing_s(self, part: str) -> float:
        """Seconds for which a part has failed at every try, for a reason that nobody expected; 0 if it has not."""
        mishap = self._mishaps.get(part)
        return 0.0 if mishap is None or mishap.unexpected is None else self._clock_s() - mishap.since_s

    def error_of(self, part: str) -> str:
        """The type of what went wrong last; empty if nothing that nobody expected."""
        mishap = self._mishaps.get(part)
        return (mishap.unexpected if mishap else None) or ""

    def forget(self, part: str) -> None:
        """There is no such part any more."""
        with self._lock:
            self._mishaps.pop(part, None)

    def told(self) -> str | None:
        """What fails for reasons that nobody expected, in one sentence without a secret; None if nothing does."""
        with self._lock:
            found = [f"{part} ({each.unexpected})" for part, each in self._mishaps.items() if each.unexpected]
        if not found:
            return None
        more = f" and {len(found) - MOST_TOLD} more" if len(found) > MOST_TOLD else ""
        return f"these fail, and are tried again: {', '.join(found[:MOST_TOLD])}{more}; the service's log says why"

    def _note(
        self, part: str, error: Exception, longest_pause_s: float, expected: tuple[type[Exception], ...]
    ) -> None:
        now_s = self._clock_s()
        is_expected = isinstance(error, expected)
        with self._lock:
            if len(self._mishaps) >= MOST_PARTS and part not in self._mishaps:
                self._mishaps.pop(next(iter(self._mishaps)))
            mishap = self._mishaps.setdefault(part, _Mishap(now_s))
        if not is_expected and mishap.unexpected is None:
            mishap.since_s = now_s
        mishap.failures += 1
        mishap.unexpected = None if is_expected else type(error).__name__
        if not is_expected:
            pause_s = FIRST_PAUSE_S * 2 ** min(mishap.failures - 1, 16)
            mishap.not_before_s = now_s + min(longest_pause_s, pause_s)
        kind = _kind(error)
        if kind in mishap.kinds:
            return
        mishap.kinds.add(kind)
        if is_expected:
            log.warning("%s: %s; trying again", part, error)
        else:
            log.error("%s failed, which nobody expected; trying again", part, exc_info=error)


def _kind(error: Exception) -> str:
    """What kind of error it is: its type, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__qualname__} {where}"
