"""Cursors of lists: where a page ended, bound to the question that it answered."""

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from services.errors import QueryError

MAX_LIMIT = 200
"""Most items on one page."""


def encode(question: Mapping[str, Any], after: list[Any]) -> str:
    """A cursor.

    Args:
        question: Filters and order of the list.
        after: Sort key of the last item shown.
    """
    text = json.dumps([_digest(question), after], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode(question: Mapping[str, Any], cursor: str, kinds: tuple[type, ...]) -> list[Any]:
    """Where the last page ended.

    Args:
        question: Filters and order of the list now.
        cursor: What `encode` made.
        kinds: Type of each part of the sort key.

    Raises:
        QueryError: It is no cursor, or one of another question.
    """
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        digest, after = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, TypeError, binascii.Error, RecursionError) as error:
        raise QueryError("cursor is not one that this service made; leave it out to begin again") from error
    if digest != _digest(question):
        raise QueryError(
            "cursor belongs to another question; filters and order must stay the same while paging"
        )
    fits = isinstance(after, list) and len(after) == len(kinds)
    if not fits or not all(_is(part, kind) for part, kind in zip(after, kinds, strict=True)):
        raise QueryError("cursor is not one that this service made; leave it out to begin again")
    return list(after)


def check_limit(limit: int) -> int:
    """The page's length, if it is allowed.

    Raises:
        QueryError: It isn't.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise QueryError(f"limit = {limit}; it must lie between 1 and {MAX_LIMIT}")
    return limit


def _is(part: object, kind: type) -> bool:
    """Whether part of a sort key is of its kind, and such that every database takes it as a parameter."""
    if type(part) is not kind:
        return False
    if isinstance(part, int):
        return abs(part) < 2**31
    return not isinstance(part, str) or (part.isascii() and part.isprintable() and len(part) <= 255)


def _digest(question: Mapping[str, Any]) -> str:
    text = json.dumps(question, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
