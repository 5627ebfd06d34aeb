"""Which process holds SQLite's write lock, as far as the system tells.

One that is stopped holds it until it goes on or ends: SQLite has nobody who could take it away. So whoever waits for it
says which process that is. Linux lists locks and who holds them; elsewhere nobody is named.
"""

import os
from dataclasses import dataclass
from pathlib import Path

_LOCKS = Path("/proc/locks")
_WRITE_LOCK_BYTE = 120
"""Of the file beside the database that ends in `-shm`: the writer's lock in SQLite's WAL-index format."""


@dataclass(frozen=True)
class Holder:
    """A process that holds the write lock."""

    pid: int
    """Its number."""
    is_stopped: bool
    """Whether it was told to stop (SIGSTOP, ctrl-z, a debugger), and does nothing."""

    def __str__(self) -> str:
        return f"process {self.pid}{' (stopped)' if self.is_stopped else ''}"


def holder_of(file: Path) -> Holder | None:
    """Who holds the write lock; None if nobody does, or if the system doesn't tell.

    Args:
        file: The database. Its files are only looked at: SQLite would lose all its locks on one that is closed.
    """
    try:
        shared = file.with_name(f"{file.name}-shm").stat()
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return None
    where = f"{os.major(shared.st_dev):02x}:{os.minor(shared.st_dev):02x}:{shared.st_ino}"
    for line in lines:
        _, kind, *words = line.split()
        if kind != "POSIX" or words[1:2] != ["WRITE"] or words[3:4] != [where]:
            continue  # those that wait for a lock have an arrow for their kind
        pid, first, last = int(words[2]), int(words[4]), words[5]
        if first <= _WRITE_LOCK_BYTE and (last == "EOF" or int(last) >= _WRITE_LOCK_BYTE):
            return Holder(pid, _is_stopped(pid))
    return None


def _is_stopped(pid: int) -> bool:
    # Not at the top: only who waits in vain asks.
    import psutil

    try:
        return bool(psutil.Process(pid).status() in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP})
    except psutil.Error:
        return False
