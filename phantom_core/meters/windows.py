"""From two readings to the energy of the window between them, with its bound, or why there is none.

A total that moves every T seconds is up to T old when it is read, so it lags behind the truth by at most
T x P, P being the power at that moment. A window's energy E = end - start therefore misses the truth by
at least -T P_end and at most +T P_start:

    |E - E_true| <= T max(P_start, P_end)  (+ what integration has added in between)
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from phantom_core.flags import Flag
from phantom_core.meters.base import EnergyReading, made
from phantom_core.protocol import Method, Scope

REFUSED_WINDOW_S = 1.0
"""Windows shorter than this get no verdict: a tenth of them may lie in one step of a 100 ms counter."""
SHORT_WINDOW_S = 10.0
"""Windows shorter than this are flagged: a counter's edges are more than a per cent of them."""
DISAGREEMENT = 0.05
"""Counter and integral that differ by more than this share are flagged."""


class WindowEnergy(NamedTuple):
    """What one device used between two readings."""

    energy_mj: float | None
    """Millijoules; None if unknown, never 0 for it."""
    uncertainty_mj: float | None
    """Half-width of the bound on `energy_mj`'s reading error, in millijoules; None if unknown. The
    sensor's own accuracy is not in it: that is the board's, and cancels between arms on one board."""
    method: Method | None
    """How it was read; None if it wasn't."""
    scope: Scope | None
    """What it covers."""
    reason: str | None = None
    """Why `energy_mj` is None, or what it leaves out."""
    flags: tuple[Flag, ...] = ()
    """What must be said beside it."""


def window_energy(
    start: EnergyReading, end: EnergyReading, edge_power_mw: Sequence[float | None] = ()
) -> WindowEnergy:
    """The energy between two readings of one meter.

    Args:
        start: The reading at the window's beginning.
        end: The reading at its end.
        edge_power_mw: Powers read just before the beginning and just after the end, in milliwatts. With
            them the bound uses the power there instead of the largest that the device can draw; None and NaN
            are ignored.

    Returns:
        The energy with its bound; None with a reason and a flag where the readings have no sound difference.
    """
    problem = None if _is_sound(start, end) else _problem(start, end)
    flags = start.flags if start.flags == end.flags else _merged(start.flags, end.flags)
    if problem is not None:
        reason, *raised = problem
        merged = _merged(flags, (Flag.ENERGY_UNKNOWN, *raised))
        return WindowEnergy(None, None, None, None, reason, merged)
    assert start.energy_mj is not None
    assert end.energy_mj is not None
    energy_mj = end.energy_mj - start.energy_mj
    bound_mj = _uncertainty_mj(start, end, energy_mj, edge_power_mw)
    fields = (energy_mj, bound_mj, start.method, start.scope, end.reason or start.reason, flags)
    return made(WindowEnergy, fields)


def _is_sound(start: EnergyReading, end: EnergyReading) -> bool:
    """Whether nothing that `_problem` looks for can be wrong; nearly always so, and then the cheaper answer."""
    (_, from_s), before_mj, method, scope, _, _, _, _, epoch, _ = start
    (_, to_s), after_mj, end_method, end_scope, _, _, _, _, end_epoch, _ = end
    return (
        before_mj is not None
        and after_mj is not None
        and 0 < after_mj - before_mj < math.inf
        and epoch == end_epoch
        and method == end_method
        and scope == end_scope
        and from_s < to_s
    )


def _problem(start: EnergyReading, end: EnergyReading) -> tuple[str] | tuple[str, Flag] | None:
    """Why two readings have no difference, and the flag that says it."""
    for name, reading in (("start", start), ("end", end)):
        if reading.energy_mj is None or not math.isfinite(reading.energy_mj):
            return (f"no energy at the window's {name}: {reading.reason or 'the reading has no total'}",)
    assert start.energy_mj is not None
    assert end.energy_mj is not None
    if start.method != end.method or start.scope != end.scope:
        both = f"{start.method} ({start.scope}) at the start and {end.method} ({end.scope}) at the end"
        return f"read by {both}", Flag.METHOD_CHANGED
    if start.epoch != end.epoch:
        reason = (
            "the counter may have started over inside the window (driver, board or process was restarted)"
        )
        return reason, Flag.COUNTER_RESET
    energy_mj = end.energy_mj - start.energy_mj
    if energy_mj < 0:
        back = f"the counter went back by {-energy_mj:.0f} mJ inside the window, so it was reset"
        return back, Flag.COUNTER_RESET
    if not math.isfinite(energy_mj):
        return (f"the counter's difference is {energy_mj}",)
    duration_s = end.instant.monotonic_s - start.instant.monotonic_s
    if not duration_s > 0:
        return (f"the window's end is {-duration_s:.6f} s before its start",)
    if energy_mj == 0 and start.method != "estimate":
        still = f"the counter did not move in {duration_s:.3f} s"
        return (f"{still}: the window is shorter than its update period, or it stands still",)
    return None


def _uncertainty_mj(
    start: EnergyReading, end: EnergyReading, energy_mj: float, edge_power_mw: Sequence[float | None]
) -> float | None:
    _, _, _, _, ceiling_mj, _, lag_s, before_mj, _, _ = start
    _, _, _, _, end_ceiling_mj, _, end_lag_s, after_mj, _, _ = end
    grown_mj = after_mj - before_mj if after_mj > before_mj else 0.0
    if ceiling_mj is not None and end_ceiling_mj is not None:
        ceiling_mj = ceiling_mj if ceiling_mj > end_ceiling_mj else end_ceiling_mj
    else:
        ceiling_mj = None
    if ceiling_mj is not None and (not edge_power_mw or lag_s is None or end_lag_s is None):
        return ceiling_mj + grown_mj
    if lag_s is None or end_lag_s is None:
        return None
    seen = [power for power in edge_power_mw if power is not None and math.isfinite(power)]
    if ceiling_mj is not None and not seen:
        return ceiling_mj + grown_mj
    mean_power_mw = energy_mj / (end.instant.monotonic_s - start.instant.monotonic_s)
    edges_mj = max(lag_s, end_lag_s) * max([mean_power_mw, *seen])
    return (edges_mj if ceiling_mj is None else min(edges_mj, ceiling_mj)) + grown_mj


def window_flags(duration_s: float) -> tuple[Flag, ...]:
    """Whether windows of this many seconds together are too short for a verdict, or for comfort."""
    if not duration_s >= REFUSED_WINDOW_S:
        return (Flag.SHORT_WINDOW_REFUSED,)
    if duration_s < SHORT_WINDOW_S:
        return (Flag.SHORT_WINDOW,)
    return ()


def methods_disagree(counter_mj: float | None, integral_mj: float | None) -> bool:
    """Whether counter and integral differ by more than 5 % of the larger; False if one is unknown."""
    if counter_mj is None or integral_mj is None:
        return False
    larger_mj = max(abs(counter_mj), abs(integral_mj))
    return abs(counter_mj - integral_mj) > DISAGREEMENT * larger_mj


def _merged(*groups: Sequence[Flag]) -> tuple[Flag, ...]:
    return tuple(dict.fromkeys(flag for group in groups for flag in group))
