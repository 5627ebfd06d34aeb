"""Signs of life of all ranks together, so that one which hangs is noticed while its node's sampler still speaks.

A rank's thread beats in the ranks' store every few seconds; rank 0's tells the service while every rank has beaten
since it last did. Beats are a thread's, not the step loop's: a window may rightly take longer than any silence that
should be borne. So what falls silent are processes that are stopped, swapped out, or gone with their host. Ranks that
all live and wait for one another are freed by the alarm where one of them fails, by a time-out in an eager collective,
and else by the experiment's own deadline.
"""

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import torch.distributed as dist
from torch._C._distributed_c10d import Store

log = logging.getLogger(__name__)

BEAT_S = 5.0
"""Seconds between two beats of a rank."""
SIGN_S = 20.0
"""Seconds between two signs of rank 0; several fit into any silence that a service bears."""


class Pulse:
    """One rank's share; a context manager, whose end stops the thread."""

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        tell: Callable[[], object],
        *,
        beat_s: float = BEAT_S,
        sign_s: float = SIGN_S,
    ) -> None:
        """Args.

        store: A connection of its own to the ranks' store.
        rank: This rank.
        size: Ranks in the worker group.
        tell: Gives the service a sign; called by rank 0's thread.
        beat_s: Seconds between two beats.
        sign_s: Seconds between two signs.
        """
        self._store = store
        self._rank = rank
        self._keys = [f"pulse/{each}" for each in range(size)]
        self._tell = tell
        self._beat_s = beat_s
        self._beats_per_sign = max(1, round(sign_s / beat_s))
        self._seen = [b""] * size
        """Every rank's beat at the last sign; none is empty."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def close(self) -> None:
        """Stops; safe to call twice. No sign is given after it."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _beat(self) -> None:
        number = 0
        while True:
            try:
                self._store.set(self._keys[self._rank], str(number))
                if self._rank == 0 and number % self._beats_per_sign == 0 and self._all_have_beaten():
                    self._tell()
            except dist.DistError:
                return  # rank 0 is gone, and with it all that this group could do
            number += 1
            if self._over.wait(self._beat_s):
                return

    def _all_have_beaten(self) -> bool:
        if not self._store.check(self._keys):
            return False  # not all of them have begun
        found = self._store.multi_get(self._keys)
        late = [rank for rank, (now, then) in enumerate(zip(found, self._seen, strict=True)) if now == then]
        if late:
            log.warning("no sign of rank %s for a while", ", ".join(map(str, late)))
            return False
        self._seen = found
        return True

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
