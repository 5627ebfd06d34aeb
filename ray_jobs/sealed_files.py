"""A rank's part of a checkpoint on the disk: a file of tensors, and a seal beside it that is written last.

The seal holds what the tensors belong to, their file's size and its digest, under a digest of its own. So a look at
the seal tells in no time whether there is a whole file of the right run, and whoever reads that file knows that it is
the one that was written. What was cut off, swapped or damaged has no seal that fits.
"""

import hashlib
import json
import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

TENSORS, SEAL = ".pt", ".seal"
"""Endings of the two files' names."""
UNFINISHED = ".unfinished"
"""Ending of a file while it is written, behind its own."""


class DamagedError(Exception):
    """What lies there is not what was written, or not all of it."""


@dataclass(frozen=True)
class Seal:
    """What is known of a file of tensors without reading it."""

    told: Mapping[str, Any]
    """What the tensors belong to: plain JSON."""
    size: int
    """Bytes of the file."""
    digest: str
    """SHA-256 of the file."""


def write(name: Path, told: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Writes both files; whoever is killed meanwhile leaves none that counts.

    Args:
        name: Of both, without their endings.
        told: What the tensors belong to: plain JSON.
        tensors: Tensors and numbers.

    Raises:
        OSError: The disk takes them not.
        RuntimeError: The same, as torch says it.
    """
    _file(name, SEAL).unlink(missing_ok=True)  # of an earlier attempt at the same step
    with _written(_file(name, TENSORS)) as stream:
        digested = _Digested(stream)
        torch.save(dict(tensors), digested)  # type: ignore[arg-type]  # it asks for these two methods only
    body = json.dumps({"told": told, "size": digested.size, "digest": digested.digest.hexdigest()}).encode()
    with _written(_file(name, SEAL)) as stream:
        stream.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def look(name: Path) -> Seal:
    """Looks at the seal and the size of the file of tensors, and at nothing else.

    Args:
        name: Of both files, without their endings.

    Raises:
        OSError: A file is missing or can't be read.
        DamagedError: The seal is damaged, or the file is not as large as it says.
    """
    digest, _, body = _file(name, SEAL).read_bytes().partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise DamagedError(f"{_file(name, SEAL)} is damaged")
    try:
        seal = Seal(**json.loads(body))
    except (TypeError, ValueError) as error:
        raise DamagedError(f"{_file(name, SEAL)} is of another version: {error}") from error
    if not isinstance(seal.told, dict):
        raise DamagedError(f"{_file(name, SEAL)} is of another version: it names no run")
    size = _file(name, TENSORS).stat().st_size
    if size != seal.size:
        raise DamagedError(f"{_file(name, TENSORS)} has {size:,} bytes instead of {seal.size:,}")
    return seal


def read(name: Path, seal: Seal) -> dict[str, Any]:
    """Reads the tensors, on the host; reading them can run nothing.

    Args:
        name: Of both files, without their endings.
        seal: Of `look`.

    Raises:
        OSError: The file can't be read.
        DamagedError: It is not the one that was sealed.
    """
    file = _file(name, TENSORS)
    with file.open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != seal.digest:
            raise DamagedError(f"{file} is damaged: its bytes are not those that were written")
        stream.seek(0)
        try:
            loaded: dict[str, Any] = torch.load(stream, map_location="cpu", weights_only=True)
        except (RuntimeError, ValueError, KeyError, pickle.UnpicklingError) as error:
            raise DamagedError(f"{file} can't be loaded by this version of torch: {error}") from error
    return loaded


def remove(name: Path) -> None:
    """Removes both files, and what was left of writing them; the seal first."""
    for ending in (SEAL, TENSORS, ""):  # without one a file was unfinished in earlier versions
        for file in (_file(name, ending), _file(name, ending + UNFINISHED)):
            file.unlink(missing_ok=True)


def _file(name: Path, ending: str) -> Path:
    return name.with_name(name.name + ending)


@contextmanager
def _written(file: Path) -> Iterator[BinaryIO]:
    """A file that is there, whole and on the disk, once all is well, and not before."""
    unfinished = _file(file, UNFINISHED)
    try:
        with unfinished.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(file)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


class _Digested:
    """Hands on what is written to it, and counts and digests it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.size = 0
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._stream.write(data)
        self.digest.update(data)
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        self._stream.flush()
