"""Gross, idle and net: what a device used, what it would have used idle, and the difference."""

from collections.abc import Sequence
from dataclasses import dataclass

from phantom_core.flags import Flag
from phantom_core.meters.idle import IdlePower
from phantom_core.meters.windows import WindowEnergy


@dataclass(frozen=True)
class NetEnergy:
    """Gross, idle and net energy of one device over one window; none of them says enough alone."""

    gross_mj: float | None
    """What the device used, in millijoules."""
    idle_mj: float | None
    """What it would have used idle in that time: idle power x seconds."""
    net_mj: float | None
    """Gross minus idle. About zero, and then perhaps a little below, for a device that hardly worked."""
    uncertainty_mj: float | None
    """Bound on the error of `net_mj`: the gross energy's, and the idle power's x seconds."""
    reason: str | None = None
    """Why something is None."""
    flags: tuple[Flag, ...] = ()
    """Flags of the gross energy and of the baselines."""


def net_energy(gross: WindowEnergy, duration_s: float, baselines: Sequence[IdlePower]) -> NetEnergy:
    """Net energy = gross - idle power x seconds.

    Args:
        gross: The device's energy in the window.
        duration_s: How long the window was, in seconds.
        baselines: The device's idle power before the first round and after the last; their mean is used, and
            half their difference widens the bound. Unknown ones are left out.

    Returns:
        All three; net is None if it is below zero by more than its bound: the baseline can't be right then.
    """
    known = [(each.power_mw, each.uncertainty_mw) for each in baselines if each.power_mw is not None]
    flags = tuple(dict.fromkeys([*gross.flags, *(flag for each in baselines for flag in each.energy.flags)]))
    if not known:
        why = next((each.reason for each in baselines if each.reason), "no idle power was measured")
        return NetEnergy(gross.energy_mj, None, None, None, why, flags)
    powers = [power for power, _ in known]
    idle_mj = sum(powers) / len(powers) * duration_s
    if gross.energy_mj is None:
        return NetEnergy(None, idle_mj, None, None, gross.reason, flags)
    net_mj = gross.energy_mj - idle_mj
    bounds = [bound for _, bound in known]
    uncertainty_mj = None
    if gross.uncertainty_mj is not None and None not in bounds:
        worst_mw = max(bound for bound in bounds if bound is not None) + (max(powers) - min(powers)) / 2
        uncertainty_mj = gross.uncertainty_mj + worst_mw * duration_s
    if net_mj < -(uncertainty_mj or 0.0):
        reason = f"idle energy is {-net_mj:.0f} mJ above gross: the device was not idle during the baseline"
        flags = tuple(dict.fromkeys((*flags, Flag.NOT_IDLE_BASELINE)))
        return NetEnergy(gross.energy_mj, idle_mj, None, None, reason, flags)
    return NetEnergy(gross.energy_mj, idle_mj, net_mj, uncertainty_mj, gross.reason, flags)
