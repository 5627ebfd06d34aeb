"""How one rank tells all others at once that it will not come to the collectives that they wait in.

A rank that fails in the middle of a step would hold its peers for as long as a collective may take. Instead it
rings: a key in the ranks' store. A thread of every rank waits for that key, in the store's server, so that it
costs nothing meanwhile. Where the main thread can't be freed even so (a kernel that waits for a peer's signal
can't be aborted), the process ends, which frees the board.
"""

import logging
import os
import threading
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store

log = logging.getLogger(__name__)

GRACE_S = 60.0
"""Seconds that a rank has to get out of its collectives after the alarm."""
STUCK_EXIT_CODE = 70
"""Of a process that could not."""
_SLICE = timedelta(seconds=1)


def _end_process() -> None:
    os._exit(STUCK_EXIT_CODE)


class Alarm:
    """One rank's bell and its ear, whose thread listens until `close`."""

    def __init__(
        self,
        bell: Store,
        ear: Store,
        hear: Callable[[str], None],
        *,
        grace_s: float = GRACE_S,
        end_process: Callable[[], None] = _end_process,
    ) -> None:
        """Args.

        bell: The ranks' store.
        ear: A connection of its own to the same store: waiting takes it up entirely.
        hear: Called by the thread with what a rank said; frees the main thread.
        grace_s: Seconds from then until `reset` is called, or else the process ends.
        end_process: Ends it.
        """
        self._bell = bell
        self._ear = ear
        self._hear = hear
        self._grace_s = grace_s
        self._end_process = end_process
        self._number = 0
        self._heard = threading.Event()
        self._over = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._listen, name="alarm", daemon=True)
        self._thread.start()

    def ring(self, why: str) -> None:
        """Tells every rank, this one included.

        Args:
            why: Which rank, and what happened to it.
        """
        self._bell.set(self._key, why)

    def reset(self) -> None:
        """Waits until this rank's thread has heard the alarm, and makes ready for the next; all ranks must."""
        if not self._heard.wait(self._grace_s):
            raise RuntimeError("the alarm was not rung, or the ranks' store is gone")
        self._heard.clear()
        self._number += 1
        self._over.set()

    def close(self) -> None:
        """Stops to listen; safe to call twice."""
        self._closed = True
        self._over.set()
        self._thread.join(2 * _SLICE.total_seconds())

    @property
    def _key(self) -> str:
        return f"alarm/{self._number}"

    def _listen(self) -> None:
        while not self._closed:
            try:
                self._ear.wait([self._key], _SLICE)
                why = self._ear.get(self._key).decode()
            except dist.DistNetworkError:
                return  # rank 0 is gone, and with it all that this group could do
            except dist.DistStoreError:
                continue  # nobody rang so far
            log.warning("alarm: %s", why)
            self._over.clear()
            self._hear(why)
            self._heard.set()
            if not self._over.wait(self._grace_s):
                log.critical("still in a collective %g s after the alarm (%s); ending", self._grace_s, why)
                self._end_process()
                return
