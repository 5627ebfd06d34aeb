"""What a comparison says, in one sentence: never a bare ratio, never without its interval."""

from dataclasses import dataclass

from phantom_core.intervals import RatioInterval
from services.metrics import Kind, Metric
from services.views import Verdict


@dataclass(frozen=True)
class Finding:
    """What is to be said."""

    metric: Metric
    verdict: Verdict
    interval: RatioInterval | None
    pairs: int
    reason: str | None
    estimated: bool


_LESS = {Kind.ENERGY: "saves {}", Kind.TIME: "takes {} less", Kind.LOSS: "ends {} lower"}
_MORE = {Kind.ENERGY: "costs {} more", Kind.TIME: "takes {} more", Kind.LOSS: "ends {} higher"}
_TIMES = {
    Kind.ENERGY: "costs {} times as much",
    Kind.TIME: "takes {} times as long",
    Kind.LOSS: "ends {} times as high",
}


def sentence(finding: Finding) -> str:
    """Without subject and full stop, such as `saves 31 % (95 % interval 28 to 34 %, 5 rounds)`."""
    interval, kind = finding.interval, finding.metric.kind
    if interval is None:
        return f"not comparable: {finding.reason}"
    told = f"{finding.pairs} rounds" + (
        "; estimated, not measured" if finding.estimated and kind is Kind.ENERGY else ""
    )
    if finding.verdict == "costs_more" and interval.ratio >= 2:
        digits = max(1, _digits(interval.high - interval.low))
        ratio, low, high = (f"{x:.{digits}f}" for x in (interval.ratio, interval.low, interval.high))
        return f"{_TIMES[kind].format(ratio)} (95 % interval {low} to {high} times, {told})"
    changes = [100 * (x - 1) for x in (interval.ratio, interval.low, interval.high)]
    digits = _digits(changes[2] - changes[1])
    nearest = min(abs(changes[1]), abs(changes[2]))
    while finding.verdict != "no_difference_shown" and digits < MOST_DIGITS and not round(nearest, digits):
        digits += 1  # or an interval that leaves no difference out would seem to have it in
    if finding.verdict == "saves":
        saved, least, most = (-change for change in (changes[0], changes[2], changes[1]))
        span = f"95 % interval {least:.{digits}f} to {most:.{digits}f} %, {told}"
        return f"{_LESS[kind].format(f'{saved:.{digits}f} %')} ({span})"
    if finding.verdict == "costs_more":
        span = f"95 % interval {changes[1]:.{digits}f} to {changes[2]:.{digits}f} %, {told}"
        return f"{_MORE[kind].format(f'{changes[0]:.{digits}f} %')} ({span})"
    change, low, high = (f"{x:+.{digits}f}" for x in changes)
    return f"no difference shown ({change} %, 95 % interval {low} to {high} %, {told})"


MOST_DIGITS = 4


def _digits(width: float) -> int:
    """Decimals that a figure deserves whose interval is this wide."""
    return 0 if width >= 2 else 1 if width >= 0.2 else 2
