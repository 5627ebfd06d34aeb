"""Names for experiments and runs: time-ordered, and safe in URLs, file names and Ray's job ids.

An experiment's id is `exp-` and 26 characters of lower-case Crockford base 32: 48 bits of milliseconds,
then 80 random bits (the layout of a ULID). A run's id is its experiment's with round and arm.
"""

import base64
import re
import secrets
import time

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32: no i, l, o, u."""
_CROCKFORDS = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", ALPHABET.encode())
"""From the digits that Python's base 32 has (RFC 4648)."""

EXPERIMENT_ID = re.compile(r"^exp-[0-9a-hjkmnp-tv-z]{26}$")
"""What an experiment's id looks like."""


def experiment_id(*, unix_ms: int | None = None) -> str:
    """A new experiment id; ids made later sort later, to the millisecond.

    Args:
        unix_ms: Milliseconds since 1970, UTC; None takes the clock's.
    """
    moment = time.time_ns() // 1_000_000 if unix_ms is None else unix_ms
    return "exp-" + _base32(moment, 10) + _base32(secrets.randbits(80), 16)


def run_id(experiment: str, round_number: int, arm_position: int) -> str:
    """The id of one arm in one round; at most 64 characters, and always the same for the same three."""
    return f"{experiment}-r{round_number:03d}-a{arm_position:02d}"


def experiment_of(identifier: str) -> str:
    """The experiment that an id of an experiment or of a run belongs to."""
    return identifier[:30]


def _base32(number: int, length: int) -> str:
    """The last digits of a number below 2**80."""
    return base64.b32encode(number.to_bytes(10))[-length:].translate(_CROCKFORDS).decode()
