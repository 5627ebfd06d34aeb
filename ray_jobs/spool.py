"""Events on disk before anything else: one file per source, one JSON line per event.

A `Spool` only appends, so a training process never waits for the network. `reporter.py` reads the
files from another thread or process and sends them. A full disk loses nothing while the process
lives: lines wait in memory and are written with the next event that can be; whoever ends must `flush`.
"""

import contextlib
import logging
import shutil
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import BinaryIO, Self

from phantom_core.meters.base import Instant
from phantom_core.protocol import Event, Payload

log = logging.getLogger(__name__)

SUFFIX = ".events"
FLUSH_AGAIN_S = 0.5


class SpoolError(Exception):
    """Events could not be written down, so the service will never hear of them."""


def spool_folder(experiment_id: str, attempt: int, part: str) -> Path:
    """Folder on this host for one job's events; the same for every process that asks.

    Args:
        experiment_id: The service's id, safe as a name.
        attempt: Number of the job's start.
        part: `driver` or `ranks`; each part has its own reader.
    """
    base = Path(tempfile.gettempdir()) / "ghostwatt-spool"
    base.mkdir(mode=0o700, exist_ok=True)
    folder = base / f"{experiment_id}.{attempt}" / part
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def remove_spool(folder: Path) -> None:
    """Removes a folder whose events have all been delivered, and its parent if no other part is left."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


class Spool:
    """Appends one source's events to its file; a context manager."""

    def __init__(self, folder: Path, source: str, experiment_id: str, attempt: int) -> None:
        """Args are those of every event: who speaks, and of which start of which experiment."""
        self.path = folder / f"{source}{SUFFIX}"
        self._source = source
        self._experiment_id = experiment_id
        self._attempt = attempt
        self._seq = 0
        self._waiting: deque[bytes] = deque()
        self._file: BinaryIO | None = None
        self._problem: str | None = None

    def emit(self, payload: Payload, *, run: tuple[str, int] | None = None) -> Event:
        """Stores one event.

        Args:
            payload: What happened.
            run: Id and attempt of the run it belongs to; None for the experiment itself.

        Returns:
            The event as stored.
        """
        subject_id, attempt = run or (self._experiment_id, self._attempt)
        event = Event(
            subject_id=subject_id,
            attempt=attempt,
            source=self._source,
            seq=self._seq,
            at=Instant.now().at,
            payload=payload,
        )
        self._seq += 1
        self._waiting.append(event.model_dump_json().encode() + b"\n")
        self._write()
        return event

    @property
    def is_behind(self) -> bool:
        """Whether events wait in memory, since the disk takes none."""
        return bool(self._waiting)

    def flush(self, patience_s: float) -> str | None:
        """Writes what still waits, waiting for room on the disk if need be.

        Args:
            patience_s: Seconds to go on trying for.

        Returns:
            What is in the way, for people; None if all is on the disk.
        """
        end_s = time.monotonic() + patience_s
        while True:
            self._write()
            if not self._waiting:
                return None
            if time.monotonic() >= end_s:
                return (
                    f"{len(self._waiting)} events could not be written to {self.path} within {patience_s:g} s "
                    f"({self._problem}); make room there, and what they tell is made again"
                )
            time.sleep(FLUSH_AGAIN_S)

    def _write(self) -> None:
        try:
            if self._file is None:
                torn = _ends_torn(self.path)
                self._file = self.path.open("ab", buffering=0)
                if torn:  # what an earlier process left half written must not swallow the next line
                    self._waiting.appendleft(b"\n")
            while self._waiting:
                line = self._waiting[0]
                written = self._file.write(line)
                if written == len(line):
                    self._waiting.popleft()
                else:  # a disk that fills up takes part of a line; the rest follows when there is room
                    self._waiting[0] = line[written:]
        except OSError as error:
            if self._problem is None:
                log.warning("%s: %s; events wait in memory", self.path, error)
            self._problem = str(error)
            return
        self._problem = None

    def close(self) -> None:
        """Writes what still waits, if it can."""
        self._write()
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _ends_torn(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            if file.seek(0, 2) == 0:
                return False
            file.seek(-1, 2)
            return file.read(1) != b"\n"
    except FileNotFoundError:
        return False
