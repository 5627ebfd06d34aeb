"""Signs of life of all ranks together, so that one which hangs is noticed while its node's sampler still speaks.

A rank's thread beats in the ranks' store every few seconds, and each beat says how far the rank is (`headway.py`).
Rank 0's tells the service while every rank has beaten since it last did. Beats are a thread's, not the step loop's: a
window may rightly take longer than any silence that should be borne. So what falls silent are processes that are
stopped, swapped out, or gone with their host. Ranks that all live and wait for one another are freed by the alarm where
one of them fails; else none of them gets on, which rank 0's thread sees (`standstill.py`), and says once instead of
giving signs.
"""

import logging
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from phantom_core.signs import SIGN_S
from ray_jobs.headway import Headway, Standing
from ray_jobs.standstill import Standstill

log = logging.getLogger(__name__)

BEAT_S = 5.0
"""Seconds between two beats of a rank."""
GRACE_S = 120.0
"""Seconds after which ranks that stand still end by themselves, if nobody else has ended them."""
STILL_EXIT_CODE = 71
"""Of a process that did."""
_SIGNS_PER_GAP = 3


def _end_process() -> None:
    os._exit(STILL_EXIT_CODE)


class Pulse:
    """One rank's share; a context manager, whose end stops the thread."""

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        tell: Callable[[], object],
        *,
        headway: Headway,
        tell_still: Callable[[str], object],
        limit_s: float,
        beat_s: float = BEAT_S,
        sign_s: float = SIGN_S,
        grace_s: float = GRACE_S,
        end_process: Callable[[], None] = _end_process,
    ) -> None:
        """Args.

        store: A connection of its own to the ranks' store.
        rank: This rank.
        size: Ranks in the worker group.
        tell: Gives the service a sign; called by rank 0's thread.
        headway: How far this rank is.
        tell_still: Says, once, that all ranks stand still, and where; called by rank 0's thread.
        limit_s: Seconds for which no rank may get on.
        beat_s: Seconds between two beats.
        sign_s: Seconds between two signs.
        grace_s: Seconds after that word until this process is ended.
        end_process: Ends it, and with it the worker group.
        """
        self._store = store
        self._rank = rank
        self._headway = headway
        self._keys = [f"pulse/{each}" for each in range(size)]
        self._tell = tell
        self._tell_still = tell_still
        self._beat_s = beat_s
        self._beats_per_sign = max(1, round(sign_s / beat_s))
        self._grace_s = grace_s
        self._end_process = end_process
        self._standstill = Standstill(limit_s, _SIGNS_PER_GAP * sign_s)
        self._is_told = False
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
                self._store.set(self._keys[self._rank], f"{number} {self._headway.told()}")
                if self._rank == 0 and number % self._beats_per_sign == 0:
                    self._look()
            except dist.DistError:
                return  # rank 0 is gone, and with it all that this group could do
            except Exception:
                log.exception("a look at how far all ranks are failed; the next one follows")
            number += 1
            if self._over.wait(self._beat_s):
                return

    def _look(self) -> None:
        if not self._all_have_beaten():
            return
        still = self._standstill.look([_standing(beat) for beat in self._seen])
        if self._is_told:
            # Whoever was told ends the job; where nobody could be told, boards must not be held for ever.
            if self._standstill.still_s > self._standstill.allowed_s + self._grace_s:
                log.critical("still standing still %g s after that was told; ending", self._grace_s)
                self._end_process()
        elif still is not None:
            log.error("%s", still)
            self._is_told = True
            self._tell_still(still)
        else:
            self._tell()

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


def _standing(beat: bytes) -> Standing:
    return Standing.parsed(beat.decode().partition(" ")[2])
