"""Secrets out of text that is kept or shown: logs of the service and of jobs."""

import re

BLOT = "[secret]"
"""Stands where a secret stood."""

_SECRETS = (
    # Whole API keys and ingest tokens; the public id stays, so that one can tell which it was.
    (re.compile(r"\b(gw_[a-z2-7]{16}_)[A-Za-z0-9_-]{8,}"), rf"\1{BLOT}"),
    # user:password@ of any URL; a password may hold anything but a space, up to the last @ of its authority.
    (
        re.compile(r"(\b[a-z][a-z0-9+.-]{0,40}://[^\s:/@]{0,200}):[^\s/]{1,400}@", re.IGNORECASE),
        rf"\1:{BLOT}@",
    ),
    # Credentials in headers, as they appear in dumps of requests.
    (re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), rf"\1 {BLOT}"),
    # name=value and "name": "value" where the name says what it is (libpq's DSN, environments, JSON).
    (
        re.compile(
            r"((?:password|passwd|secret|token|api[_-]?key)[\"']?\s{0,8}[=:]\s{0,8}[\"']?)"
            r"(?!None\b|null\b)[^\s\"',;&}\])]{4,}",
            re.IGNORECASE,
        ),
        rf"\1{BLOT}",
    ),
)
"""What a secret looks like. Every repetition before a fixed part is bounded: logs are long and anybody's text."""


_MARKS = ("gw_", "://", "bearer", "basic", "passw", "secret", "token", "key")
"""Of which every secret's pattern needs one, however it is written; most lines of a log have none."""


def scrubbed(text: str) -> str:
    """A text without what looks like a secret."""
    folded = text.casefold()
    if not any(mark in folded for mark in _MARKS):
        return text
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text
