"""A sampler outlives the ranks that it samples: what they used is told, though the one that started it was killed.

Ray ends an actor with the process that owns it, at once and without a word, and with it the last seconds of samples and
whatever the ranks had spooled. So the sampler is nobody's, and looks after its own end.
"""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

LOOK_EVERY_S = 0.5
PATIENCE_S = 60.0
"""Longest time that a sampler goes on for ranks that stay when the one that started it is gone: Ray ends them."""
_STATE, _BEGAN = 0, 19
"""Places in `/proc/PID/stat` behind the name: the state, and when it began, in ticks since the host's start."""


@dataclass(frozen=True)
class KnownProcess:
    """A process of this host, told apart from a later one with its number."""

    pid: int
    """Its number."""
    began: float
    """When it began, as this host's kernel tells it: no step of the wall clock moves it."""

    @classmethod
    def of(cls, pid: int) -> Self:
        """The process that has that number now.

        Raises:
            ProcessLookupError: There is none.
        """
        began = _began(pid)
        if began is None:
            raise ProcessLookupError(f"there is no process {pid}")
        return cls(pid, began)

    @property
    def lives(self) -> bool:
        """Whether it is there and has not ended."""
        return _began(self.pid) == self.began


def _began(pid: int) -> float | None:
    """When the process of that number began; None if there is none, or it has ended."""
    if not psutil.LINUX:
        try:
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
        except psutil.Error:
            return None
    try:
        told = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = told.rpartition(b")")[2].split()
    return None if fields[_STATE] in (b"Z", b"X") else float(fields[_BEGAN])


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
        while any(_began(pid) is not None for pid in self._others()) and time.monotonic() < end_s:
            time.sleep(self._look_every_s)
        self._bereft()
