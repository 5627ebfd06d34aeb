"""Some of what a job printed, in bytes of its log file; and how to keep only the end of one that comes as JSON."""

import codecs
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

_HEX = "[0-9a-fA-F]"
_HIGH = "[dD][89abAB]"
"""How the first of two escapes begins that are one character together."""
_WHOLE = re.compile(
    rf'(?:[^\\"]+|\\[^u]|\\u(?!{_HIGH}){_HEX}{{4}}'
    rf"|\\u{_HIGH}{_HEX}{{2}}(?:\\u{_HEX}{{4}}|(?=[^\\]|\\[^u])))*"
)
"""As much of a JSON string's inside as needs nothing of what follows."""
_BEGIN = re.compile(r'\s*\{\s*"logs"\s*:\s*"')


LONGEST_BEGIN = 1_000
"""Characters in which the answer must have come to the log."""


@dataclass(frozen=True)
class LogPart:
    """The end of a log, or of what is new of it."""

    first_byte: int
    """Position of the first byte of `data` in the log."""
    data: bytes
    """What was printed, to the log's end as it was when it was read."""

    @property
    def end_byte(self) -> int:
        """Position behind the log's last byte."""
        return self.first_byte + len(self.data)


EMPTY = LogPart(0, b"")
"""Of a job that has printed nothing."""


def end_of_json(chunks: Iterable[bytes], first_byte: int, most: int) -> LogPart | None:
    """The end of a log that comes as `{"logs": "..."}`, however long it is: little more than the end is ever held.

    Args:
        chunks: The answer.
        first_byte: Of what the log holds before, nothing is wanted.
        most: Most bytes that are wanted, from the end.

    Returns:
        The end; None if the answer is no such JSON.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text, is_begun, is_over = "", False, False
    end_byte = 0
    kept = bytearray()
    for chunk in chunks:
        text += decoder.decode(chunk)
        if not is_begun:
            begin = _BEGIN.match(text)
            if begin is None:
                if len(text) > LONGEST_BEGIN:
                    return None
                continue
            text, is_begun = text[begin.end() :], True
        found = _WHOLE.match(text)
        assert found is not None, "it matches nothing at least"
        whole = found.end()
        is_over = text[whole : whole + 1] == '"'
        try:
            told: str = json.loads(f'"{text[:whole]}"', strict=False)
        except ValueError:
            return None
        text = text[whole:]
        data = told.encode(errors="replace")
        end_byte += len(data)
        kept += data
        del kept[: max(0, len(kept) - most)]
        if is_over:
            break
    if not is_over:
        return None
    first_byte = min(max(first_byte, end_byte - len(kept)), end_byte)
    return LogPart(first_byte, bytes(kept[len(kept) - (end_byte - first_byte) :]))
