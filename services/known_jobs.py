"""Jobs' tokens that were good not long ago: whose body may be read before the database is asked whether they still are.

What is remembered opens nothing: `point_writes.store` looks whether a key is good in the transaction that it writes in.
"""

import hashlib
import hmac
from collections import OrderedDict

from services.keys import Caller

MOST_JOBS = 1_000
"""Tokens that are remembered; the one that was not used for longest is forgotten first."""


class KnownJobs:
    """Used by one thread."""

    def __init__(self, most: int = MOST_JOBS) -> None:
        """Args: how many to remember."""
        self._most = most
        self._callers: OrderedDict[str, tuple[bytes, Caller]] = OrderedDict()
        """By the public part of the key, which tells nothing by how long it takes to find: with what the whole
        token's hash is."""

    def note(self, token: str, caller: Caller) -> None:
        """Remembers a token that `keys.verify_job` has just found good."""
        self._callers[caller.id] = _digest(token), caller
        self._callers.move_to_end(caller.id)
        if len(self._callers) > self._most:
            self._callers.popitem(last=False)

    def find(self, token: str) -> Caller | None:
        """Whose token it was when it was noted; None if that isn't known."""
        known = self._callers.get(token.removeprefix("gw_").partition("_")[0])
        if known is None or not hmac.compare_digest(known[0], _digest(token)):
            return None
        self._callers.move_to_end(known[1].id)
        return known[1]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
