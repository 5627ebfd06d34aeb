"""Integrals of one trace of power over many windows at once: what `integrate_power` says of each, in array operations.

A window that samples see from end to end without a gap is the common case, and all such windows are worked out
together, piece by piece as `integrate_power` does; the others are left to it one by one. The cost of a long run is
that of its samples, not that of its windows.
"""

import numpy as np
from numpy.typing import NDArray

from phantom_core.meters.integration import GAP_PERIODS, PowerIntegral, integrate_power, usable_samples

PIECES_AT_ONCE = 1_000_000
"""Pieces of the polygon that are held in memory together; about a hundred bytes each."""


def integrate_windows(
    samples: NDArray[np.float64],
    starts_s: NDArray[np.float64],
    ends_s: NDArray[np.float64],
    *,
    margin_s: float,
    rate_hz: float,
    sensor_period_s: float,
) -> list[PowerIntegral]:
    """Integrates power over each of the windows.

    Args:
        samples: (n, 2): monotonic seconds, milliwatts, in any order; NaN, infinite and negative powers are no samples.
        starts_s: (w,): beginnings of the windows on the samples' clock.
        ends_s: (w,): their ends.
        margin_s: Seconds around a window of which samples count.
        rate_hz: Samples per second that were asked for.
        sensor_period_s: How far back a sample may look, in seconds.

    Returns:
        One for each window, as `integrate_power` gives it of the samples from `margin_s` before to `margin_s` after
        it, up to the order in which the pieces are added.
    """
    found: list[PowerIntegral | None] = [None] * len(starts_s)
    times, powers = usable_samples(samples)
    plain = _plain(times, starts_s, ends_s, margin_s, rate_hz)
    for some in _portions(plain, times, starts_s, ends_s):
        integrals = _integrals(times, powers, starts_s[some], ends_s[some], sensor_period_s)
        for index, integral in zip(some, integrals, strict=True):
            found[index] = integral
    return [
        integral
        or integrate_power(
            _around(times, powers, start_s - margin_s, end_s + margin_s),
            start_s,
            end_s,
            rate_hz=rate_hz,
            sensor_period_s=sensor_period_s,
        )
        for integral, start_s, end_s in zip(found, starts_s.tolist(), ends_s.tolist(), strict=True)
    ]


def _around(
    times: NDArray[np.float64], powers: NDArray[np.float64], from_s: float, to_s: float
) -> NDArray[np.float64]:
    first, last = np.searchsorted(times, [from_s, to_s])
    return np.column_stack((times[first:last], powers[first:last]))


def _plain(
    times: NDArray[np.float64],
    starts_s: NDArray[np.float64],
    ends_s: NDArray[np.float64],
    margin_s: float,
    rate_hz: float,
) -> NDArray[np.intp]:
    """Which windows are seen from end to end, without a gap."""
    if len(times) < 2:
        return np.zeros(0, dtype=np.intp)
    pauses = np.diff(times)
    gaps_before = np.append(0, np.cumsum(pauses > GAP_PERIODS * (1 / rate_hz)))
    low, high = np.searchsorted(times, starts_s - margin_s), np.searchsorted(times, ends_s + margin_s)
    first, last = np.searchsorted(times, starts_s), np.searchsorted(times, ends_s, "right")
    with np.errstate(invalid="ignore"):
        lasting = np.isfinite(ends_s - starts_s) & (ends_s > starts_s)
    first_piece, last_piece = np.maximum(first - 1, 0), np.minimum(last, len(pauses))
    unbroken = gaps_before[last_piece] == gaps_before[first_piece]
    # A neighbour that the margin cuts off would change what `integrate_power` takes for the largest change. Which way
    # a window is worked out depends on nothing beyond its margins, so that the last digit doesn't, either.
    inner = (low <= first - 2) & (high >= last + 2)
    return np.flatnonzero(lasting & unbroken & inner)


def _portions(
    windows: NDArray[np.intp],
    times: NDArray[np.float64],
    starts_s: NDArray[np.float64],
    ends_s: NDArray[np.float64],
) -> list[NDArray[np.intp]]:
    """The windows in portions that fit into memory."""
    if not len(windows):
        return []
    pieces = np.searchsorted(times, ends_s[windows], "right") - np.searchsorted(times, starts_s[windows]) + 1
    portion = np.cumsum(pieces) // PIECES_AT_ONCE
    return np.split(windows, np.flatnonzero(np.diff(portion)) + 1)


def _integrals(
    times: NDArray[np.float64],
    powers: NDArray[np.float64],
    starts_s: NDArray[np.float64],
    ends_s: NDArray[np.float64],
    look_back_s: float,
) -> list[PowerIntegral | None]:
    """Windows that are seen from end to end; None for one whose powers are too large to add up."""
    first, last = np.searchsorted(times, starts_s), np.searchsorted(times, ends_s, "right")
    counts = last - first + 1  # pieces from the sample before the window to the one after it
    begins = np.cumsum(counts) - counts
    piece = np.arange(counts.sum()) - np.repeat(begins - (first - 1), counts)
    with np.errstate(over="ignore", invalid="ignore"):
        from_s = np.maximum(times[piece], np.repeat(starts_s, counts))
        to_s = np.minimum(times[piece + 1], np.repeat(ends_s, counts))
        length_s = np.maximum(0.0, to_s - from_s)
        slope = np.diff(powers) / np.diff(times)
        mean_mw = np.maximum(0.0, powers[piece] + slope[piece] * ((from_s + to_s) / 2 - times[piece]))
        steps = np.pad(np.abs(np.diff(powers)), 1)
        change_mw = np.maximum(np.maximum(steps[:-2], steps[1:-1]), steps[2:])[piece]
        energies_mj = np.add.reduceat(length_s * mean_mw, begins)
        bounds_mj = np.add.reduceat(change_mw * (length_s / 2 + look_back_s), begins)
    longest_s = np.maximum.reduceat(length_s, begins)
    finite = np.isfinite(energies_mj + bounds_mj)
    return [
        PowerIntegral(energy_mj, inside, longest, bound_mj) if is_finite else None
        for energy_mj, inside, longest, bound_mj, is_finite in zip(
            energies_mj.tolist(), (counts - 1).tolist(), longest_s.tolist(), bounds_mj.tolist(), finite.tolist(),
            strict=True,
        )
    ]  # fmt: skip
