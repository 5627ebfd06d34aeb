"""What holds a board down from outside: its limits on power and on clocks. A comparison needs them to be alike."""

from dataclasses import dataclass

POWER_TOLERANCE = 0.01
"""Power limits that differ by less than this share are one, as drivers round them."""


@dataclass(frozen=True)
class BoardLimits:
    """The limits that one board was under; None for one that isn't known."""

    power_mw: float | None = None
    """Enforced power limit, milliwatts."""
    clock_mhz: float | None = None
    """Limit on the clock of the multiprocessors, MHz."""
    memory_clock_mhz: float | None = None
    """Limit on the clock of the memory, MHz."""

    def changed_from(self, before: "BoardLimits") -> bool:
        """Whether a limit of this board is seen to be another than before; one that isn't known shows nothing.

        Args:
            before: The same board's limits earlier.
        """
        clocks = (
            (self.clock_mhz, before.clock_mhz),
            (self.memory_clock_mhz, before.memory_clock_mhz),
        )
        return _is_other(self.power_mw, before.power_mw, POWER_TOLERANCE) or any(
            _is_other(now, then) for now, then in clocks
        )


UNKNOWN_LIMITS = BoardLimits()
"""Of a board that tells none."""


def _is_other(now: float | None, then: float | None, tolerance: float = 0.0) -> bool:
    return now is not None and then is not None and abs(now - then) > tolerance * then
