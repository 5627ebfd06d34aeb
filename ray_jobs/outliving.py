"""A sampler outlives the ranks that it samples: what they used is told, though the one that started it was killed.

Ray ends an actor with the process that owns it, at once and without a word, and with it the last seconds of samples and
whatever the ranks had spooled. So the sampler is nobody's, and looks after its own end.
"""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Self

import psutil

LOOK_EVERY_S = 0.5
PATIENCE_S = 60.0
"""Longest time that a sampler goes on for ranks that stay when the one that started it is gone: Ray ends them."""


@dataclass(frozen=True)
class KnownProcess:
    """A process of this host, told apart from a later one with its number."""

    pid: int
    """Its number."""
    created_s: float
    """When it began, in seconds since 1970."""

    @classmethod
    def this(cls) -> Self:
        """The one that asks."""
        own = psutil.Process()
        return cls(own.pid, own.create_time())

    @property
    def lives(self) -> bool:
        """Whether it is there and has not ended."""
        try:
            process = psutil.Process(self.pid)
            # The kernel counts in hundredths of a second.
            is_it = abs(process.create_time() - self.created_s) < 0.02
            return is_it and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


class Outliving:
    """Waits in a thread for the end of a process, then for the end of others, and then calls back, once."""

    def __init__(
        self,
        starter: KnownProcess,
        others: Callable[[], Collection[int]],
        bereft: Callable[[], object],
        *,
        patience_s: float = PATIENCE_S,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        """Begins at once.

        Args:
            starter: Whose end is waited for.
            others: Numbers of the processes that are let end first; asked for anew at every look.
            bereft: Called when they have, or `patience_s` later.
            patience_s: Seconds.
            look_every_s: Seconds.
        """
        self._starter, self._others, self._bereft = starter, others, bereft
        self._patience_s, self._look_every_s = patience_s, look_every_s
        threading.Thread(target=self._watch, name="outliving", daemon=True).start()

    def _watch(self) -> None:
        while self._starter.lives:
            time.sleep(self._look_every_s)
        end_s = time.monotonic() + self._patience_s
        while any(map(_lives, self._others())) and time.monotonic() < end_s:
            time.sleep(self._look_every_s)
        self._bereft()


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
