"""What a start of an experiment's job told of its data and boards: the next start may find others."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from phantom_core.board_limits import BoardLimits
from services.tables import Device


@dataclass(frozen=True)
class MadeWith:
    """What the runs of one start were made with."""

    data_digest: str | None = None
    """Digest of the rows that they learned from; None if unknown."""
    limits: Mapping[tuple[str, str], BoardLimits] = field(default_factory=dict)
    """Limits of its boards by host and UUID, as they were then."""

    @classmethod
    def of(cls, environment: Mapping[str, Any] | None) -> Self:
        """From what is stored of a start; None of one that has told nothing."""
        told = environment or {}
        boards = told.get("limits", ())
        return cls(
            told.get("data_digest"),
            {
                (each["host"], each["uuid"]): BoardLimits(
                    each["power_mw"], each["clock_mhz"], each["memory_clock_mhz"]
                )
                for each in boards
            },
        )

    def limits_of(self, device: Device) -> BoardLimits:
        """A board's limits in this start; those of the last one if this told none."""
        return self.limits.get((device.host, device.uuid), device.limits)
