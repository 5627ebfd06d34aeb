"""What one rank has got done and what it is in, so that a long wait can be told from one that never ends.

Its main thread writes where it goes from one thing to the next anyway; the pulse's thread reads every few seconds.
Nothing asks the device: steps that were given to it are no steps done, but a device that has stopped takes no more
than some hundred, and then this thread stands still too.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Standing:
    """How far a rank is."""

    moves: tuple[int, int]
    """Things entered so far, and pieces of work given to the device; whoever stands still repeats both."""
    where: str
    """What it is in, for people."""
    may_take_s: float
    """Seconds that this may rightly take; 0 if nothing is known that would take long."""

    @classmethod
    def parsed(cls, text: str) -> "Standing":
        """From `Headway.told`."""
        told = json.loads(text)
        first, second = told.pop("moves")
        return cls(moves=(first, second), **told)


class Headway:
    """One rank's."""

    def __init__(self) -> None:
        self._entered = 0
        self._about = ""
        self._enqueued: Callable[[], int] = _nothing
        self._stage = ("its start", 0.0)

    def about(self, what: str) -> None:
        """What all that comes is part of, for people.

        Args:
            what: Such as an arm and its round; empty for nothing.
        """
        self._about = what

    def enter(self, what: str, may_take_s: float = 0.0) -> None:
        """The last thing is done and the next one begins.

        Args:
            what: The next one, for people: what this rank does, or whom it waits for.
            may_take_s: Seconds that it may rightly take, with all the patience that is due.
        """
        self._stage = (f"{self._about}: {what}" if self._about else what, may_take_s)
        self._entered += 1

    def watch(self, enqueued: Callable[[], int] | None) -> None:
        """Counts work that the device is given meanwhile.

        Args:
            enqueued: Tells how much so far; asked by another thread. None for no longer.
        """
        self._enqueued = enqueued or _nothing

    def told(self) -> str:
        """How far this rank is; for any thread."""
        where, may_take_s = self._stage
        return json.dumps(asdict(Standing((self._entered, self._enqueued()), where, may_take_s)))


def _nothing() -> int:
    return 0
