"""Idle power of a run's boards, and what its training used beyond it: gross - idle power x seconds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phantom_core.flags import Flag
from services.window_rows import WindowRow
from services.window_sums import Sum


@dataclass(frozen=True)
class IdlePower:
    """What a board drew while it did nothing."""

    power_mw: float
    """The mean of before and after, milliwatts."""
    uncertainty_mw: float
    """Bound on it: the readings' own, and half of what before and after differ by."""


@dataclass(frozen=True)
class IdleBaseline:
    """What the boards drew before the first round and after the last."""

    power_mw: float | None
    """All boards together, milliwatts; None if one of them is unknown."""
    boards: Mapping[int, IdlePower] = field(default_factory=dict)
    """Each board's by its key; none if one of them is unknown."""
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
    boards = {key: _idle_power(of_board) for key, of_board in read.items()}
    return IdleBaseline(math.fsum(each.power_mw for each in boards.values()), boards, flags)


def _idle_power(windows: Sequence[WindowRow]) -> IdlePower:
    powers = [(each.energy_mj or 0.0) / each.duration_s for each in windows]
    bound = max((each.uncertainty_mj or 0.0) / each.duration_s for each in windows)
    return IdlePower(statistics.fmean(powers), bound + (max(powers) - min(powers)) / 2)


def net_energy(gross: Sum, windows: Sequence[WindowRow], idle: IdleBaseline) -> NetEnergy:
    """Gross energy less idle power x seconds, each board's by its own windows: a rank may be late at an edge.

    One that is below zero by more than gross and idle can be off together is refused: the boards can't have been idle
    while their idle power was measured.

    Args:
        gross: The training windows' sum.
        windows: The training windows.
        idle: Idle power of the same boards.
    """
    if gross.energy_mj is None or idle.power_mw is None:
        return NetEnergy(None)
    lasting = [(idle.boards[window.device_key], window.duration_s) for window in windows]
    net_mj = gross.energy_mj - math.fsum(board.power_mw * seconds for board, seconds in lasting)
    bound_mj = (gross.uncertainty_mj or 0.0) + math.fsum(
        board.uncertainty_mw * seconds for board, seconds in lasting
    )
    if net_mj >= -bound_mj:
        return NetEnergy(net_mj)
    reason = (
        f"idle power x seconds is {-net_mj:.0f} mJ above the energy of training, so the boards were not idle while it "
        "was measured, and net energy is unknown"
    )
    return NetEnergy(None, reason, frozenset({Flag.NOT_IDLE_BASELINE}))
