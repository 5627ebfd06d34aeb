"""Windows added up: each board once, all boards or none, bounds with figures."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from phantom_core.flags import Flag
from services.window_rows import WindowRow

MIXED = "mixed"
"""Method or scope of a figure whose windows differ in it."""


@dataclass(frozen=True)
class Sum:
    """Windows of one kind together."""

    energy_mj: float | None = None
    uncertainty_mj: float | None = None
    integral_mj: float | None = None
    integral_uncertainty_mj: float | None = None
    seconds: float = 0.0
    steps: int = 0
    samples: int = 0
    sample_count: int = 0
    largest_gap_s: float | None = None
    method: str | None = None
    scope: str | None = None
    reason: str | None = None
    flags: frozenset[str] = field(default_factory=frozenset)

    def without_energy(self, reason: str) -> "Sum":
        """The same with its energy unknown; seconds, steps and samples stay."""
        return replace(
            self,
            energy_mj=None,
            uncertainty_mj=None,
            integral_mj=None,
            integral_uncertainty_mj=None,
            reason=reason,
            flags=self.flags | {Flag.ENERGY_UNKNOWN},
        )


def distinct(windows: Iterable[WindowRow]) -> list[WindowRow]:
    """One window for each phase, number and device: a known energy before an unknown one, then by source."""
    best: dict[tuple[str, int, int], WindowRow] = {}
    for window in sorted(windows, key=lambda each: (each.energy_mj is None, each.source, each.seq)):
        best.setdefault((window.phase, window.number, window.device_key), window)
    return sorted(best.values(), key=lambda each: (each.phase, each.number, each.device_key))


def sum_over(windows: Sequence[WindowRow], devices: set[int]) -> Sum:
    """Common windows over all of the devices.

    Args:
        windows: Distinct charged windows of one phase.
        devices: Keys of the boards that each window must have come from.

    Returns:
        The sum; without energy and with the reason if a window of a board is missing or unread.
    """
    if not windows:
        return Sum(reason="no such window was reported")
    here = {(window.number, window.device_key) for window in windows}
    numbers = sorted({number for number, _ in here})
    gaps = [number for number in numbers if any((number, device) not in here for device in devices)]
    # Barriers at both ends make a window common; the clocks of its hosts differ by the barriers' own time.
    # Every board that one has come from tells all of its steps; some boards' may never come.
    common: dict[int, list[WindowRow]] = {}
    for window in windows:
        common.setdefault(window.number, []).append(window)
    unread = next((window for window in windows if window.energy_mj is None), None)
    whole = Sum(
        energy_mj=_added(window.energy_mj for window in windows),
        uncertainty_mj=_added(window.uncertainty_mj for window in windows),
        integral_mj=_added(window.integral_mj for window in windows),
        integral_uncertainty_mj=_added(window.integral_uncertainty_mj for window in windows),
        seconds=math.fsum(max(each.duration_s for each in boards) for boards in common.values()),
        steps=sum(max(each.steps for each in boards) for boards in common.values()),
        samples=sum(max(each.samples for each in boards) for boards in common.values()),
        sample_count=sum(window.sample_count for window in windows),
        largest_gap_s=max((w.largest_gap_s for w in windows if w.largest_gap_s is not None), default=None),
        method=_one({window.method for window in windows}),
        scope=_one({window.scope for window in windows}),
        reason=unread.reason if unread else next((w.reason for w in windows if w.reason), None),
        flags=frozenset(
            flag for window in windows for flag in [*(window.flags or ()), *(window.seen_flags or ())]
        ),
    )
    if gaps:
        return whole.without_energy(f"{windows[0].phase} window {gaps[0]} has not come from all boards")
    return whole


def total_energy(windows: Sequence[WindowRow]) -> float | None:
    """Millijoules of all the windows; None without any, or if one is unread."""
    return _added(window.energy_mj for window in windows) if windows else None


def energy_or_integral(windows: Sequence[WindowRow]) -> tuple[float | None, str | None]:
    """Millijoules of all the windows, the integral of power standing for those that the meter could not resolve.

    Returns:
        The sum, None without any window or if one has neither; and what must be said of it.
    """
    if not windows:
        return None, "no whole window was reported"
    unread = [window for window in windows if window.energy_mj is None]
    energies = [window.integral_mj if window.energy_mj is None else window.energy_mj for window in windows]
    unknown = next((w for w in unread if w.integral_mj is None), None)
    if unknown is not None:
        return None, f"{unknown.phase} window {unknown.number}: {unknown.reason or 'its energy is unknown'}"
    if unread:
        seconds = math.fsum(window.duration_s for window in unread)
        said = f"of {len(unread)} windows ({seconds:.3g} s) that the meter could not resolve, sampled power is in it"
        return _added(energies), said
    return _added(energies), None


def _added(values: Iterable[float | None]) -> float | None:
    """The sum; None if one of them is unknown."""
    known = list(values)
    if any(value is None for value in known):
        return None
    return math.fsum(value for value in known if value is not None)


def _one(names: set[str | None]) -> str | None:
    return names.pop() if len(names) == 1 else MIXED
