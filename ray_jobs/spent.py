"""What an arm's windows of one kind have used, added up over windows on a rank, then over the arm's ranks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from phantom_core.protocol import DeviceInfo
from ray_jobs.window_clock import OpenWindow


def reads_device(devices: Sequence[DeviceInfo], rank: int) -> bool:
    """Whether a rank is the lowest of those that share its device, so that the device is read, and counted, once.

    Args:
        devices: Of the ranks that take part, by rank.
        rank: Which; one that takes no part reads none.
    """
    names = [(device.host, device.uuid) for device in devices]
    return rank < len(names) and names.index(names[rank]) == rank


@dataclass(frozen=True)
class Spent:
    """Energy and time of windows of one kind."""

    reads_meter: bool = True
    """Whether a device was read; of ranks that share one, only the first reads it."""
    seconds: float = 0.0
    """Together."""
    steps: int = 0
    """Optimizer steps inside."""
    windows: int = 0
    """How many."""
    energy_mj: float | None = 0.0
    """Millijoules; None if that of any window is unknown."""
    uncertainty_mj: float | None = 0.0
    """Sum of the windows' bounds; None if one is unknown."""
    is_estimate: bool = False
    """Whether any energy was estimated: then no longer window is more precise."""

    def and_window(self, window: OpenWindow) -> Self:
        """These windows and one more."""
        return replace(
            self,
            seconds=self.seconds + (window.duration_s or 0.0),
            steps=self.steps + window.steps,
            windows=self.windows + 1,
            energy_mj=_sum([self.energy_mj, window.energy_mj]),
            uncertainty_mj=_sum([self.uncertainty_mj, window.uncertainty_mj]),
            is_estimate=self.is_estimate or window.is_estimate,
        )

    @classmethod
    def by_all(cls, shares: Sequence["Spent"]) -> "Spent":
        """What all ranks of an arm have used in common windows; time is rank 0's, so that all decide alike."""
        reading = [share for share in shares if share.reads_meter]
        return replace(
            shares[0],
            energy_mj=_sum([share.energy_mj for share in reading]) if reading else None,
            uncertainty_mj=_sum([share.uncertainty_mj for share in reading]) if reading else None,
            is_estimate=any(share.is_estimate for share in reading),
        )

    @property
    def per_step_mj(self) -> float | None:
        """Millijoules per optimizer step; None if unknown."""
        return None if self.energy_mj is None or not self.steps else self.energy_mj / self.steps

    def missing_s(self, precision: float, *, anew: bool = False) -> float:
        """Seconds that one more window must last for these windows' bound to be within a precision.

        The bound u of a counter comes from the windows' edges, u / windows from each, whatever lies between,
        and these draw the power P = E / seconds. So t seconds more suffice if (u + u / windows) / (E + P t) is
        the precision.

        Args:
            precision: Wished bound as a share of the energy.
            anew: Whether the further window is to be within the precision alone, without these.

        Returns:
            Seconds; 0 if the bound is narrow enough, or no window would narrow it.
        """
        energy_mj, bound_mj = self.energy_mj, self.uncertainty_mj
        if not energy_mj or bound_mj is None or self.is_estimate or not self.windows:
            return 0.0
        if bound_mj <= precision * energy_mj:
            return 0.0
        edges_mj, power_mw = bound_mj / self.windows, energy_mj / self.seconds
        if anew:
            return edges_mj / precision / power_mw
        return max(0.0, (bound_mj + edges_mj) / precision / power_mw - self.seconds)


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if len(known) == len(values) else None
