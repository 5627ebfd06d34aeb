"""Where a log may be cut: what is taken of it piece by piece holds no secret, and no half of one either."""

import re
from dataclasses import dataclass

from services.log_parts import LogPart
from services.scrubbing import BEFORE_BYTES, beginning, scrubbed
from services.texts import storable

LOOKED_BEFORE = 4_096
"""Bytes before what is wanted that are to be in a part, for what it follows on to be seen."""
LONGEST_LINE = 64 * 2**10
"""Bytes after which a line is cut between words while it grows."""

_LINE_END, _SPACE = re.compile(rb"\n"), re.compile(rb"\s")


@dataclass(frozen=True)
class Taken:
    """What is taken of a log."""

    begin_byte: int
    """Position of its first byte: later than was asked for where nobody can see what that follows on."""
    end_byte: int
    """Position behind its last byte."""
    text: str
    """Without secrets."""


def taken(part: LogPart, begin_byte: int, end_byte: int, *, ended: bool) -> Taken:
    """Takes what is new of a part of a log.

    Args:
        part: What was read, some of what was taken before included.
        begin_byte: Position up to which the log was taken before, within the part.
        end_byte: Position behind the last byte that is wanted, within the part.
        ended: Whether nothing that is wanted follows; else it is taken as far as no secret may be cut in two by it.
    """
    data = part.data[: end_byte - part.first_byte]
    first = begin_byte - part.first_byte
    if part.first_byte and beginning(data, first) == 0:
        first = _after_unseen(data, first)
    last = len(data) if ended else _whole_words(data, first)
    before, new = (_text(piece) for piece in (data[beginning(data, first) : first], data[first:last]))
    return Taken(
        part.first_byte + first,
        part.first_byte + last,
        scrubbed(before + new, begin=len(before), is_cut=ended),
    )


def _after_unseen(data: bytes, first: int) -> int:
    """The first line or, where that is far, the first word from a place on of which all that matters is seen."""
    least = max(first, BEFORE_BYTES)
    found = _LINE_END.search(data, least, least + LONGEST_LINE) or _SPACE.search(data, least)
    return len(data) if found is None else found.end()


def _whole_words(data: bytes, first: int) -> int:
    """To the end of the last line, or of the last word where a line is very long."""
    last = max(first, data.rfind(b"\n", first) + 1)
    rest = data[last:]
    if len(rest) <= LONGEST_LINE:
        return last
    return len(data) if rest[-1:].isspace() else len(data) - len(rest.rsplit(None, 1)[-1])


def _text(data: bytes) -> str:
    return storable(data.decode(errors="replace"))
