"""Which services use one embedded head: the last of them to leave knows that it is the last, and ends it.

Each holds a shared lock on a file beside the head's record for as long as it uses the head. The kernel drops the
locks of a service that is killed. Locks are the open file's: no program that a service starts inherits them.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOOK_AGAIN_S = 0.1


class HeadUse:
    """One service's use of the head in a folder."""

    def __init__(self, folder: Path) -> None:
        """Args: the head's folder, which exists once the head is used."""
        self._users = folder / "users.lock"
        self._starting = folder / "starting.lock"
        self._descriptor: int | None = None

    @property
    def has_begun(self) -> bool:
        """Whether this service uses the head."""
        return self._descriptor is not None

    def begin(self, cancelled: Callable[[], bool]) -> bool:
        """Begins to use it, once nobody is about to end it; begun before, it does nothing.

        Args:
            cancelled: Asked while waiting; True gives up.

        Returns:
            Whether it is used now.
        """
        if self._descriptor is not None:
            return True
        descriptor = _open(self._users)
        if _locked(descriptor, fcntl.LOCK_SH, cancelled):
            self._descriptor = descriptor
            return True
        os.close(descriptor)
        return False

    @contextmanager
    def alone(self, cancelled: Callable[[], bool]) -> Iterator[bool]:
        """Nobody else looks for a head or starts one meanwhile; gives whether that was reached before `cancelled`."""
        descriptor = _open(self._starting)
        try:
            yield _locked(descriptor, fcntl.LOCK_EX, cancelled)
        finally:
            os.close(descriptor)

    def is_last(self) -> bool:
        """Whether nobody else uses it, and nobody begins to until this use ends.

        Of several that ask at once exactly one is told so. One that is not has to `end`: it holds no lock any more.
        """
        return self._descriptor is not None and _try(self._descriptor, fcntl.LOCK_EX)

    def end(self) -> None:
        """Ends this use; safe to call twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _open(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _locked(descriptor: int, kind: int, cancelled: Callable[[], bool]) -> bool:
    while not _try(descriptor, kind):
        if cancelled():
            return False
        time.sleep(LOOK_AGAIN_S)
    return True


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
