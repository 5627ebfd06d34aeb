"""What ranks were told, compared field by field, for an error that names what differs. Torch-free."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_MOST_SHOWN = 80
"""Characters of a value in a message."""
_MOST_RANKS = 8
"""Ranks that are named one by one."""


@dataclass(frozen=True)
class Told:
    """What one rank was told."""

    what: str
    """What it is about to do."""
    settings: Mapping[str, str]
    """Its settings in words, by name."""

    @classmethod
    def of(cls, what: str, settings: Mapping[str, object]) -> "Told":
        """Puts settings into words."""
        return cls(what, {name: str(value) for name, value in settings.items()})

    @classmethod
    def read(cls, sent: bytes) -> "Told":
        """What another rank has sent."""
        what, settings = json.loads(sent)
        return cls(what, settings)

    @property
    def sent(self) -> bytes:
        """As it is sent to other ranks."""
        return json.dumps([self.what, dict(self.settings)]).encode()

    @property
    def digest(self) -> int:
        """What tells it from anything else: 64 bits with a sign."""
        return int.from_bytes(hashlib.sha256(self.sent).digest()[:8], signed=True)


def difference(told: Sequence[Told]) -> str:
    """Says what ranks disagree on.

    Args:
        told: Of every rank, in rank order; not all the same.

    Returns:
        `what: name = value on rank 0, other value on ranks 1, 2; ...`.
    """
    if len({each.what for each in told}) > 1:
        return _by_value([each.what for each in told])
    fields = dict.fromkeys(name for each in told for name in each.settings)
    values = {name: [each.settings.get(name, "nothing") for each in told] for name in fields}
    differing = [
        f"{name} = {_by_value(of_ranks)}" for name, of_ranks in values.items() if len({*of_ranks}) > 1
    ]
    return f"{told[0].what}: {'; '.join(differing)}"


def named(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 0, 2`, of very many the first."""
    shown = ", ".join(map(str, ranks[:_MOST_RANKS]))
    more = f" and {len(ranks) - _MOST_RANKS} more" if len(ranks) > _MOST_RANKS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"


def holders(values: Sequence[str | None]) -> dict[str, list[int]]:
    """Which ranks have which value, in the order in which they come; None is none.

    Args:
        values: Of every rank, in rank order.
    """
    found: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        if value is not None:
            found.setdefault(value, []).append(rank)
    return found


def _by_value(values: Sequence[str]) -> str:
    return ", ".join(f"{_shortened(value)} on {named(ranks)}" for value, ranks in holders(values).items())


def _shortened(value: str) -> str:
    return value if len(value) <= _MOST_SHOWN else f"{value[: _MOST_SHOWN - 3]}..."
