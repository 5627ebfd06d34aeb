"""Ctrl-c and SIGTERM as a request that is looked at between two steps, never an exception out of nowhere.

An exception raised by a signal handler can strike between starting a process and remembering it. Here the
handler only notes the signal; `sleep` and `check` raise `Stopped` where that is safe, and a second ctrl-c
changes nothing while the first one is being obeyed.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SLICE_S = 0.1
"""Longest time until a request to stop is seen while sleeping."""


class Stopped(Exception):
    """The user, or whoever manages the process, wants it to end."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


class StopRequest:
    """Whether a signal has asked to stop."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def check(self) -> None:
        """Raises `Stopped` if a signal came."""
        if self.signal_number is not None:
            raise Stopped(self.signal_number)

    def sleep(self, seconds: float) -> None:
        """Sleeps, at most until a signal comes.

        Raises:
            Stopped: One came.
        """
        end = time.monotonic() + seconds
        self.check()
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, SLICE_S))
            self.check()


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Turns SIGINT, SIGTERM and SIGHUP into a `StopRequest` for as long as the block lasts."""
    request = StopRequest()

    def note(number: int, _frame: FrameType | None) -> None:
        request.signal_number = request.signal_number or number

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
