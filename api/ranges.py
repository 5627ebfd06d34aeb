"""The `Range` header (RFC 9110, section 14): one range of bytes; others are refused or, as it says, ignored."""

import re
from dataclasses import dataclass

from api.errors import ApiError

_ONE_RANGE = re.compile(r"bytes=\s*(?:(\d{1,18})-(\d{0,18})|-(\d{1,18}))\s*")


@dataclass(frozen=True)
class ByteRange:
    """What is asked for."""

    first_byte: int
    """Position of the first byte; negative counts from the end."""
    length: int | None
    """Most bytes; None for all that follow."""


class RangeNotSatisfiable(ApiError):
    """416: nothing of the range is there."""

    def __init__(self, detail: str, length: int) -> None:
        headers = {"Content-Range": f"bytes */{length}", "Accept-Ranges": "bytes"}
        super().__init__(416, "range-not-satisfiable", detail, headers=headers)


def parse_range(header: str | None, length: int) -> ByteRange | None:
    """The range that a request asks for; None if it asks for none, or in another unit than bytes.

    Args:
        header: `Range`.
        length: Bytes that there are now, for the answer to a range that can't be.

    Raises:
        RangeNotSatisfiable: It asks for several ranges, or for none that can be.
    """
    if header is None or not header.strip().lower().startswith("bytes="):
        return None
    found = _ONE_RANGE.fullmatch(header.strip().lower())
    if found is None:
        raise RangeNotSatisfiable(
            "one range of bytes is answered, such as bytes=0-65535 or bytes=-65536", length
        )
    first, last, suffix = found.groups()
    if suffix is not None:
        if int(suffix) == 0:
            raise RangeNotSatisfiable("bytes=-0 asks for nothing", length)
        return ByteRange(-int(suffix), int(suffix))
    if not last:
        return ByteRange(int(first), None)
    if int(last) < int(first):
        raise RangeNotSatisfiable(f"the range ends at {last}, before it begins at {first}", length)
    return ByteRange(int(first), int(last) - int(first) + 1)
