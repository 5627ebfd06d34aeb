"""Waiting for a collective without being held for ever by a peer that will not come.

On the CPU a wait is cut into slices, between which another thread's word that a peer is gone is looked for;
nothing is slower for it, since the slice ends with the collective. On CUDA a wait only makes one stream wait
for another; there the group's collectives are aborted instead.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

LOOK_UP_EVERY = timedelta(seconds=1)
"""Longest that a wait goes on after a peer was said to be gone."""


class Pending(Protocol):
    """A collective under way."""

    def wait(self) -> object:
        """Waits for it: on the CPU until it is done, on CUDA by making the current stream wait."""


class Joined:
    """An exchange on a stream of its own.

    Args:
        join: Makes the current stream wait for that one.
    """

    def __init__(self, join: Callable[[], None]) -> None:
        self._join = join

    def wait(self) -> None:
        """Makes the current stream wait for it."""
        self._join()


class SlicedWait:
    """A CPU collective that is waited for in slices.

    Args:
        work: The collective.
        look_up: Called between slices; raises if waiting is in vain.
    """

    def __init__(self, work: dist.Work, look_up: Callable[[], None]) -> None:
        self._work = work
        self._look_up = look_up

    def wait(self) -> None:
        """Waits until the collective is done.

        Raises:
            RuntimeError: It failed, or took longer than its group allows.
            Exception: What `look_up` raises.
        """
        while True:
            try:
                self._work.wait(LOOK_UP_EVERY)
                return
            except RuntimeError:
                if self._work.is_completed():
                    self._work.wait()  # done in the meantime, or else this raises its own error
                    return
            self._look_up()


def abort(group: dist.ProcessGroup) -> None:
    """Ends the NCCL collectives of a group that this process waits in; the group is of no use afterwards.

    gloo has nothing of the kind: its waits are sliced.

    Args:
        group: Which; stays known to torch, so that no new group gets its name.
    """
    if dist.get_backend(group) == "nccl":
        # torch.distributed has no public function that leaves the group known.
        group._get_backend(torch.device("cuda")).abort()
