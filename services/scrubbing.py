"""Secrets out of text that is kept or shown: logs of the service and of jobs.

What is cut must not lose a secret on the way: half of one may look like none. So whoever looks through a text piece by
piece hands over what stands before the piece, too (`beginning`), cuts where a word ends, and says where a text was cut
in any other place (`is_cut`). Secrets have no space in them.
"""

import re
from collections.abc import Iterator
from typing import AnyStr

BLOT = "[secret]"
"""Stands where a secret stood."""

_LOOKS = (
    # Whole API keys and ingest tokens; the public id stays, so that one can tell which it was. Tokens of worker groups.
    (r"\bgw_[a-z2-7]{16}_", r"[A-Za-z0-9_-]", 8, ""),
    (r"\bgg_", r"[A-Za-z0-9_-]", 20, ""),
    # user:password@ of any URL; a password may hold anything but a space, up to the last @ of its authority.
    (r"\b[a-z][a-z0-9+.-]{0,40}://[^\s:/@]{0,200}:", r"[^\s/]", 1, "@"),
    # Credentials in headers, as they appear in dumps of requests.
    (r"\b(?:Bearer|Basic)\s{1,40}", r"[A-Za-z0-9._~+/=-]", 8, ""),
    # name=value and "name": "value" where the name says what it is (libpq's DSN, environments, JSON).
    (
        r"(?:password|passwd|secret|token|api[_-]?key)[\"']?\s{0,8}[=:]\s{0,8}[\"']?(?!None\b|null\b)",
        r"[^\s\"',;&}\])]",
        4,
        "",
    ),
)
"""What stands before a secret, which characters it has, how many at least, and what stands behind it. Every repetition
before a fixed part is bounded: logs are long and anybody's text."""

_WHOLE = tuple(
    re.compile(f"{before}(?P<secret>{of}{{{least},{400 if behind else ''}}}){behind}", re.IGNORECASE)
    for before, of, least, behind in _LOOKS
)
_CUT = tuple(re.compile(rf"{before}(?P<secret>{of}+)\Z", re.IGNORECASE) for before, of, _, _ in _LOOKS)
"""The same, of which the rest is missing."""

_MARKS = ("gw_", "gg_", "://", "bearer", "basic", "passw", "secret", "token", "key")
"""Of which every secret's pattern needs one, however it is written; most lines of a log have none."""

_LONGEST_SECRET = 1_000
_LONGEST_BEFORE = 64
"""Most characters, spaces among them, before the word that a secret begins in."""
BEFORE_BYTES = 4 * _LONGEST_BEFORE
"""The same in bytes, as long as any of these characters may be."""


def scrubbed(text: str, *, begin: int = 0, is_cut: bool = False) -> str:
    """A text without what looks like a secret.

    Args:
        text: The text.
        begin: From where on it is wanted; what is before is only looked at.
        is_cut: Whether it may have been cut in the middle of a word, so that its end may be half of a secret.
    """
    folded = text.casefold()
    if not any(mark in folded for mark in _MARKS):
        return text[begin:]
    kept, place = [], begin
    for start, stop in sorted(_secrets(text, is_cut)):
        if stop <= place:
            continue
        if start >= place or place == begin:
            kept += [text[place:start], BLOT]
        place = stop
    return "".join([*kept, text[place:]])


def excerpt(text: str, most: int) -> str:
    """The beginning of a text, without secrets; more than is kept is looked at, since a blot makes room."""
    looked_at = text[: most + _LONGEST_SECRET]
    return scrubbed(looked_at, is_cut=len(text) > len(looked_at))[:most]


def beginning(text: AnyStr, place: int) -> int:
    """From where on a text, or its bytes, must be looked at for no secret that reaches behind a place to be missed."""
    if place and not text[place - 1 : place].isspace():
        # Split in C: a word may be as long as a log.
        place -= len(text[:place].rsplit(None, 1)[-1])
    return max(0, place - (BEFORE_BYTES if isinstance(text, bytes) else _LONGEST_BEFORE))


def _secrets(text: str, is_cut: bool) -> Iterator[tuple[int, int]]:
    for pattern in _WHOLE:
        for found in pattern.finditer(text):
            yield found.span("secret")
    if is_cut:
        last = beginning(text, len(text))
        for pattern in _CUT:
            for found in pattern.finditer(text, last):
                yield found.span("secret")
