"""Energy as the integral of sampled power: trapezoids, interpolated at the window's edges.

Between two samples p and q that lie dt apart, a power that moves from one to the other in any way without
overshooting has an integral between dt min(p, q) and dt max(p, q); the trapezoid lies in the middle, so it
misses by at most dt |q - p| / 2. A sensor that is refreshed every T seconds adds at most T |q - p|: its
samples are a trace that lags by up to T. For |q - p| the largest change of a piece and its two neighbours is
taken, so that a crest between two equal samples is covered where it shows in the slopes beside it. The bounds
of the pieces add up.
"""

import bisect
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from phantom_core.flags import Flag

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


def integrate_power(
    samples: Iterable[tuple[float, float | None]],
    start_monotonic_s: float,
    end_monotonic_s: float,
    *,
    rate_hz: float | None = None,
    sensor_period_s: float = 0.0,
) -> PowerIntegral:
    """Integrates power over a window.

    Args:
        samples: (monotonic seconds, milliwatts) in any order, from a little before the window to a little
            after, so that its edges can be interpolated; at an edge without a sample beyond it the nearest
            one is held. None, NaN, infinite and negative powers are no samples.
        start_monotonic_s: Beginning of the window on the samples' clock, in seconds.
        end_monotonic_s: Its end, in seconds.
        rate_hz: Samples per second that were asked for; None takes the median distance of the samples.
        sensor_period_s: How often the sensor behind the samples is refreshed, in seconds.

    Returns:
        The energy, its bound, and how well the window was seen.
    """
    duration_s = end_monotonic_s - start_monotonic_s
    points = _usable(samples)
    times = [time_s for time_s, _ in points]
    first = bisect.bisect_left(times, start_monotonic_s)
    last = bisect.bisect_right(times, end_monotonic_s)
    inside = last - first
    if not (math.isfinite(duration_s) and duration_s > 0):
        return PowerIntegral(None, 0, None, None, f"the window lasts {duration_s} s")
    if not points or (inside == 0 and (first == 0 or last == len(points))):
        return PowerIntegral(
            None, 0, None, None, "no power sample in or around the window", (Flag.SAMPLER_GAP,)
        )
    if len(points) < 2:
        return PowerIntegral(
            None, inside, None, None, "one power sample makes no integral", (Flag.SAMPLER_GAP,)
        )
    path = _clipped(points, start_monotonic_s, end_monotonic_s, first, last)
    period_s = 1 / rate_hz if rate_hz else _median_distance_s(times)
    energy_mj = uncertainty_mj = 0.0
    for piece in path:
        energy_mj += piece.length_s * (piece.from_mw + piece.to_mw) / 2
        uncertainty_mj += piece.change_mw * (piece.length_s / 2 + sensor_period_s)
    gaps = [piece for piece in path if piece.pause_s > GAP_PERIODS * period_s]
    if gaps:
        spread_mw = max(power for _, power in points) - min(power for _, power in points)
        uncertainty_mj += sum(piece.length_s for piece in gaps) * spread_mw
    largest_gap_s = max(piece.length_s for piece in path)
    flags = (Flag.SAMPLER_GAP,) if gaps else ()
    unseen_s = sum(piece.length_s for piece in gaps)
    if unseen_s > MOST_UNSEEN * duration_s:
        reason = f"{unseen_s:.3f} of {duration_s:.3f} s have no power samples"
        return PowerIntegral(None, inside, largest_gap_s, None, reason, flags)
    if not math.isfinite(energy_mj + uncertainty_mj):
        return PowerIntegral(None, inside, largest_gap_s, None, "the powers are too large to add up", flags)
    return PowerIntegral(energy_mj, inside, largest_gap_s, uncertainty_mj, None, flags)


@dataclass(frozen=True)
class _Piece:
    length_s: float
    """Of the part inside the window."""
    from_mw: float
    to_mw: float
    change_mw: float
    """Largest between the two samples or their neighbours, also where only a part of the piece is inside."""
    pause_s: float
    """Between the two samples, or between a sample and the edge to which it is held."""


def _usable(samples: Iterable[tuple[float, float | None]]) -> list[tuple[float, float]]:
    by_time = {
        time_s: power_mw
        for time_s, power_mw in samples
        if power_mw is not None and math.isfinite(power_mw) and power_mw >= 0 and math.isfinite(time_s)
    }
    return sorted(by_time.items())


def _clipped(
    points: list[tuple[float, float]], start_s: float, end_s: float, first: int, last: int
) -> list[_Piece]:
    """The pieces of the polygon through the samples that lie in the window."""
    low, high = max(0, first - 1), min(len(points), last + 1)
    reach = points[low:high]
    pieces = []
    if reach[0][0] > start_s:
        pieces.append(_held(reach[0], reach[0][0] - start_s, reach))
    for index, ((left_s, left_mw), (right_s, right_mw)) in enumerate(itertools.pairwise(reach), start=low):
        from_s, to_s = max(left_s, start_s), min(right_s, end_s)
        if to_s <= from_s:
            continue
        slope = (right_mw - left_mw) / (right_s - left_s)
        around = [power for _, power in points[max(0, index - 1) : index + 3]]
        pieces.append(
            _Piece(
                length_s=to_s - from_s,
                from_mw=left_mw + slope * (from_s - left_s),
                to_mw=left_mw + slope * (to_s - left_s),
                change_mw=max(abs(after - before) for before, after in itertools.pairwise(around)),
                pause_s=right_s - left_s,
            )
        )
    if reach[-1][0] < end_s:
        pieces.append(_held(reach[-1], end_s - max(reach[-1][0], start_s), reach))
    return pieces


def _held(point: tuple[float, float], length_s: float, reach: list[tuple[float, float]]) -> _Piece:
    """A sample held to an edge: what power did there is unknown, but hardly more than it did elsewhere."""
    change_mw = max(power for _, power in reach) - min(power for _, power in reach)
    return _Piece(length_s, point[1], point[1], 2 * change_mw, length_s)


def _median_distance_s(times: list[float]) -> float:
    distances = sorted(right - left for left, right in itertools.pairwise(times))
    return distances[len(distances) // 2] if distances else math.inf
