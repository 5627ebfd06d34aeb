"""A process that is told apart from a later one with its number, whatever becomes of the wall clock.

Numbers of processes come round again, so a number alone may be a stranger's. Linux tells in `/proc/PID/stat` when a
process began, in ticks since the host's start; with the id that the kernel gives each start of the host, that is
unique, and no step of the wall clock moves it (proc_pid_stat(5), random(4)).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

_STATE, _BEGAN = 0, 19
"""Places in `/proc/PID/stat` behind the name: the state, and when it began."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class KnownProcess:
    """A process of this host; it can be written down, and is a stranger to a later start of the host.

    Where there is no `/proc`, it relies on the creation time that the system tells. macOS and Windows note it down when
    the process begins. A system that works it out from the moment of its own start tells another one when the wall
    clock is set: then the process counts as ended, and none is ever taken for it.
    """

    pid: int
    """Its number."""
    began: float
    """When it began: ticks since the host's start on Linux, else seconds since 1970; compared, never reckoned with."""
    host_start: str | None
    """Which start of the host that was in; None where the system gives it no name."""

    @classmethod
    def of(cls, pid: int) -> Self:
        """The process that has that number now.

        Raises:
            ProcessLookupError: There is none, or it has ended.
        """
        began = _began(pid)
        if began is None:
            raise ProcessLookupError(f"there is no process {pid}")
        return cls(pid, began, _host_start())

    @property
    def lives(self) -> bool:
        """Whether it is there and has not ended."""
        return _began(self.pid) == self.began and _host_start() == self.host_start


def is_running(pid: int) -> bool:
    """Whether there is a process of that number that has not ended; one that nobody has waited for has."""
    return _began(pid) is not None


def _began(pid: int) -> float | None:
    """When the process of that number began; None if there is none, or it has ended."""
    if not psutil.LINUX:
        try:
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
        except (psutil.Error, ValueError):
            return None
    try:
        told = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = told.rpartition(b")")[2].split()
    return None if fields[_STATE] in (b"Z", b"X") else float(fields[_BEGAN])


def _host_start() -> str | None:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return None
