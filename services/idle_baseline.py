"""Idle power of a run's boards, and what its training used beyond it: gross - idle power x seconds."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from phantom_core.flags import Flag
from services.window_rows import WindowRow
from services.window_sums import Sum


@dataclass(frozen=True)
class IdleBaseline:
    """What the boards drew before the first round and after the last."""

    power_mw: float | None
    """All boards together, milliwatts, each by the mean of before and after; None if one of them is unknown."""
    uncertainty_mw: float = 0.0
    """Bound on it: the readings' own, and half of what before and after differ by."""
    flags: frozenset[str] = frozenset()
    """`not_idle_baseline` if a board was not idle."""


@dataclass(frozen=True)
class NetEnergy:
    """Energy beyond idling."""

    energy_mj: float | None
    """Millijoules; about zero, and then perhaps a little below, for boards that hardly worked; None if unknown."""
    reason: str | None = None
    """Why it is refused where gross and idle are known."""
    flags: frozenset[str] = frozenset()
    """`not_idle_baseline` if it is refused."""


def idle_baseline(windows: Sequence[WindowRow], devices: set[int]) -> IdleBaseline:
    """Idle power of some boards.

    Args:
        windows: Distinct windows of the phases `idle_before` and `idle_after` of these boards.
        devices: Their keys.
    """
    flags = frozenset(
        flag for window in windows for flag in window.flags or () if flag == Flag.NOT_IDLE_BASELINE
    )
    read: dict[int, list[WindowRow]] = {}
    for window in windows:
        if window.energy_mj is not None and window.duration_s > 0:
            read.setdefault(window.device_key, []).append(window)
    if not devices or read.keys() != devices:
        return IdleBaseline(None, flags=flags)
    powers = [[(each.energy_mj or 0.0) / each.duration_s for each in of_board] for of_board in read.values()]
    bounds = [
        max((each.uncertainty_mj or 0.0) / each.duration_s for each in of_board) for of_board in read.values()
    ]
    halves = [(max(each) - min(each)) / 2 for each in powers]
    return IdleBaseline(math.fsum(map(statistics.fmean, powers)), math.fsum(bounds + halves), flags)


def net_energy(gross: Sum, idle: IdleBaseline) -> NetEnergy:
    """Gross energy less idle power x seconds.

    One that is below zero by more than gross and idle can be off together is refused: the boards can't have been idle
    while their idle power was measured.

    Args:
        gross: The training windows.
        idle: Idle power of the same boards.
    """
    if gross.energy_mj is None or idle.power_mw is None:
        return NetEnergy(None)
    net_mj = gross.energy_mj - idle.power_mw * gross.seconds
    bound_mj = (gross.uncertainty_mj or 0.0) + idle.uncertainty_mw * gross.seconds
    if net_mj >= -bound_mj:
        return NetEnergy(net_mj)
    reason = (
        f"idle power x seconds is {-net_mj:.0f} mJ above the energy of training, so the boards were not idle while it "
        "was measured, and net energy is unknown"
    )
    return NetEnergy(None, reason, frozenset({Flag.NOT_IDLE_BASELINE}))
