"""Energy as the integral of sampled power: trapezoids, interpolated at the window's edges.

Between two samples p and q that lie dt apart, a power that moves from one to the other in any way without
overshooting has an integral between dt min(p, q) and dt max(p, q); the trapezoid lies in the middle, so it
misses by at most dt |q - p| / 2. A sensor that is refreshed every T seconds adds at most T |q - p|: its
samples are a trace that lags by up to T. For |q - p| the largest change of a piece and its two neighbours is
taken, so that a crest between two equal samples is covered where it shows in the slopes beside it. The bounds
of the pieces add up. A change that begins in the last T before the window's end shows in no sample yet, and a window
of less than 2 T may lie within one refresh: the bound knows nothing of either.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phantom_core.flags import Flag
from phantom_core.meters.base import PowerMethod

SENSOR_PERIOD_S = 0.1
"""How often sensors of momentary power were seen to be refreshed; see docs/energy.md."""
AVERAGING_S = 1.0
"""Time over which NVML's averaged power looks back."""
GAP_PERIODS = 5.0
"""A pause of more than this many sample periods is a gap."""
MOST_UNSEEN = 0.5
"""If gaps are more than this share of the window, there is no integral."""


@dataclass(frozen=True)
class PowerIntegral:
    """Energy from samples of power over one window."""

    energy_mj: float | None
    """Millijoules; None if there are too few samples."""
    sample_count: int
    """Usable samples inside the window."""
    largest_gap_s: float | None
    """Longest stretch of the window between two usable samples, or between one and an edge, in seconds;
    None without samples."""
    uncertainty_mj: float | None
    """Bound on the error of integration, in millijoules; the sensor's own accuracy is not in it."""
    reason: str | None = None
    """Why there is no energy."""
    flags: tuple[Flag, ...] = ()
    """`sampler_gap` if there was a gap."""


def sensor_period_s(method: PowerMethod, rate_hz: float) -> float:
    """How far back a sample of power may look, in seconds.

    Args:
        method: How the power was read. An estimate, and a processor's average, is the mean since the last reading.
        rate_hz: Readings per second.
    """
    since_last_s = 1 / rate_hz
    if method == "instant":
        return SENSOR_PERIOD_S
    if method == "average":
        return max(AVERAGING_S + SENSOR_PERIOD_S, since_last_s)
    return since_last_s


def integrate_power(
    samples: Iterable[tuple[float, float | None]] | NDArray[np.float64],
    start_monotonic_s: float,
    end_monotonic_s: float,
    *,
    rate_hz: float | None = None,
    sensor_period_s: float = SENSOR_PERIOD_S,
) -> PowerIntegral:
    """Integrates power over a window.

    Args:
        samples: (monotonic seconds, milliwatts) in any order, from a little before the window to a little
            after, so that its edges can be interpolated; at an edge without a sample beyond it the nearest
            one is held. None, NaN, infinite and negative powers are no samples. An array (n, 2) is fastest.
        start_monotonic_s: Beginning of the window on the samples' clock, in seconds.
        end_monotonic_s: Its end, in seconds.
        rate_hz: Samples per second that were asked for; None takes the median distance of the samples.
        sensor_period_s: How far back a sample may look, in seconds (see `sensor_period_s`).

    Returns:
        The energy, its bound, and how well the window was seen.
    """
    duration_s = end_monotonic_s - start_monotonic_s
    times, powers = usable_samples(samples)
    first, last = np.searchsorted(times, start_monotonic_s), np.searchsorted(times, end_monotonic_s, "right")
    inside = max(0, int(last - first))
    if not (math.isfinite(duration_s) and duration_s > 0):
        return PowerIntegral(None, 0, None, None, f"the window lasts {duration_s} s")
    if inside == 0 and (first == 0 or last == len(times)):
        reason = "no power sample in or around the window"
        return PowerIntegral(None, 0, None, None, reason, (Flag.SAMPLER_GAP,))
    if len(times) < 2:
        reason = "one power sample makes no integral"
        return PowerIntegral(None, inside, None, None, reason, (Flag.SAMPLER_GAP,))
    with np.errstate(over="ignore", invalid="ignore"):  # the result is looked at instead
        return _integral(times, powers, start_monotonic_s, end_monotonic_s, rate_hz, sensor_period_s)


def _integral(
    times: NDArray[np.float64],
    powers: NDArray[np.float64],
    start_s: float,
    end_s: float,
    rate_hz: float | None,
    look_back_s: float,
) -> PowerIntegral:
    first, last = int(np.searchsorted(times, start_s)), int(np.searchsorted(times, end_s, "right"))
    inside, duration_s = last - first, end_s - start_s
    pieces = _pieces(times, powers, start_s, end_s, first, last)
    period_s = 1 / rate_hz if rate_hz else float(np.median(np.diff(times)))
    gaps = (pieces.pause_s > GAP_PERIODS * period_s) & (pieces.length_s > 0)
    unseen_s = float(pieces.length_s[gaps].sum())
    largest_gap_s = float(pieces.length_s.max())
    flags = (Flag.SAMPLER_GAP,) if gaps.any() else ()
    if unseen_s > MOST_UNSEEN * duration_s:
        reason = f"{unseen_s:.3f} of {duration_s:.3f} s have no power samples"
        return PowerIntegral(None, inside, largest_gap_s, None, reason, flags)
    energy_mj = float(pieces.length_s @ pieces.mean_mw)
    uncertainty_mj = float(pieces.change_mw @ (pieces.length_s / 2 + look_back_s))
    uncertainty_mj += unseen_s * float(np.ptp(powers))
    if not math.isfinite(energy_mj + uncertainty_mj):
        return PowerIntegral(None, inside, largest_gap_s, None, "the powers are too large to add up", flags)
    return PowerIntegral(energy_mj, inside, largest_gap_s, uncertainty_mj, None, flags)


@dataclass(frozen=True)
class _Pieces:
    """The polygon through the samples, cut to the window; one entry per piece."""

    length_s: NDArray[np.float64]
    """Of the part inside the window."""
    mean_mw: NDArray[np.float64]
    """Mean power of that part."""
    change_mw: NDArray[np.float64]
    """Largest change of the whole piece and its two neighbours."""
    pause_s: NDArray[np.float64]
    """Between the two samples, or between a sample and the edge to which it is held."""


def usable_samples(
    samples: Iterable[tuple[float, float | None]] | NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times and powers in order, each time once (the last of several), without what is no sample."""
    table = samples if isinstance(samples, np.ndarray) else np.array(list(samples), dtype=np.float64)
    table = table.reshape(-1, 2)
    table = table[np.isfinite(table).all(axis=1) & (table[:, 1] >= 0)]
    table = table[np.argsort(table[:, 0], kind="stable")]
    times = table[:, 0]
    table = table[np.append(times[1:] != times[:-1], True)] if len(table) else table
    return table[:, 0], table[:, 1]


def _pieces(
    times: NDArray[np.float64],
    powers: NDArray[np.float64],
    start_s: float,
    end_s: float,
    first: int,
    last: int,
) -> _Pieces:
    low, high = max(0, first - 1), min(len(times), last + 1)
    t, p = times[low:high], powers[low:high]
    from_s, to_s = np.maximum(t[:-1], start_s), np.minimum(t[1:], end_s)
    length_s = np.maximum(0.0, to_s - from_s)
    slope = np.diff(p) / np.diff(t)
    mean_mw = np.maximum(0.0, p[:-1] + slope * ((from_s + to_s) / 2 - t[:-1]))
    steps = np.pad(np.abs(np.diff(powers)), 1)
    change_mw = np.maximum(np.maximum(steps[:-2], steps[1:-1]), steps[2:])[low : high - 1]
    pieces = [length_s, mean_mw, change_mw, np.diff(t)]
    # A sample held to an edge: what power did there is unknown, but hardly more than it did elsewhere.
    spread_mw = 2 * np.ptp(p)
    for held_s, power_mw in ((t[0] - start_s, p[0]), (end_s - max(t[-1], start_s), p[-1])):
        if held_s > 0:
            held = (held_s, power_mw, spread_mw, held_s)
            pieces = [np.append(column, value) for column, value in zip(pieces, held, strict=True)]
    return _Pieces(*pieces)
