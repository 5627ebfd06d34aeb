"""What is written down of a Ray head that a service started, so that the next one finds it: `head.json`."""

from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import TypeAdapter, ValidationError

from phantom_core.known_process import KnownProcess

MARK = "GHOSTWATT_RAY_HEAD"
"""Variable that a head and its whole family carry."""


@dataclass(frozen=True)
class HeadRecord:
    """What is written down of a running head."""

    leader: KnownProcess | None
    """The leading process; None while it is being started, or if nothing says which it is."""
    mark: str
    """Value of the variable that its family carries."""
    address: str
    """The dashboard's address, where jobs are submitted."""
    temp_dir: str
    """Ray's folder for sessions."""
    is_ended: bool = False
    """Whether a service that was told to end has ended it, or was about to: nothing that ran there goes on."""

    @property
    def is_living(self) -> bool:
        """Whether the leading process lives."""
        return self.leader is not None and self.leader.lives

    def process(self) -> psutil.Process | None:
        """The leading process, to be ended; None if it has ended."""
        if self.leader is None:
            return None
        try:
            process = psutil.Process(self.leader.pid)
        except psutil.Error:
            return None
        # Asked afterwards: from now on it is this process or, to psutil as well, none.
        return process if self.leader.lives else None

    def write(self, file: Path) -> None:
        """Puts it in place of what the file holds, all at once."""
        temporary = file.with_suffix(".tmp")
        temporary.write_bytes(_RECORD.dump_json(self))
        temporary.replace(file)


def recorded(file: Path) -> HeadRecord | None:
    """What the file says, whichever version wrote it; None if it says nothing."""
    try:
        told = file.read_bytes()
    except OSError:
        return None
    try:
        return _RECORD.validate_json(told)
    except ValidationError:
        pass
    try:
        return _OLDER_RECORD.validate_json(told).read()
    except ValidationError:
        return None


def known(pid: int) -> KnownProcess | None:
    """The process that has that number now; None if it has ended."""
    try:
        return KnownProcess.of(pid)
    except ProcessLookupError:
        return None


@dataclass(frozen=True)
class _OlderRecord:
    """A record as an earlier version wrote it."""

    pid: int
    mark: str
    address: str
    temp_dir: str

    def read(self) -> HeadRecord:
        """What it says now: its number is the head's if that process carries the mark.

        It has the leader's creation time as well, which is not asked: a wall clock that was set has moved it. Without a
        leader the record still tells by its mark what is left to end.
        """
        leader = known(self.pid)
        try:
            is_head = leader is not None and psutil.Process(leader.pid).environ().get(MARK) == self.mark
        except (psutil.Error, OSError):
            is_head = False
        return HeadRecord(leader if is_head else None, self.mark, self.address, self.temp_dir)


_RECORD: TypeAdapter[HeadRecord] = TypeAdapter(HeadRecord)
_OLDER_RECORD: TypeAdapter[_OlderRecord] = TypeAdapter(_OlderRecord)
