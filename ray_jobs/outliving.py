"""A sampler outlives the ranks that it samples: what they used is told, though the one that started it was killed.

Ray ends an actor with the process that owns it, at once and without a word, and with it the last seconds of samples and
whatever the ranks had spooled. So the sampler is nobody's, and looks after its own end.
"""

import threading
import time
from collections.abc import Callable, Collection

from phantom_core.known_process import KnownProcess, is_running

LOOK_EVERY_S = 0.5
PATIENCE_S = 60.0
"""Longest time that a sampler goes on for ranks that stay when the one that started it is gone: Ray ends them."""


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
        while any(is_running(pid) for pid in self._others()) and time.monotonic() < end_s:
            time.sleep(self._look_every_s)
        self._bereft()
