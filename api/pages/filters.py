"""How figures and states look on a page."""

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from services.views import ArmComparison, ComparisonView, MetricComparison, VerdictView

STATE_CLASSES = {
    "queued": "",
    "leased": "busy",
    "starting": "busy",
    "running": "busy",
    "succeeded": "good",
    "failed": "bad",
    "lost": "bad",
    "diverged": "warn",
    "cancelled": "warn",
    "skipped": "",
}
VERDICT_CLASSES = {"saves": "good", "costs_more": "bad", "no_difference_shown": "", "not_comparable": "warn"}

COLUMNS = (
    ("energy_to_target_mj", "J to target"),
    ("energy_training_mj", "J training"),
    ("energy_per_step_mj", "J per step"),
    ("seconds_to_target", "s to target"),
    ("training_s", "s training"),
    ("seconds_per_step", "s per step"),
)
"""Metrics shown beside a verdict, where the comparison has them."""


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits; a dash for unknown."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def joules(millijoules: float | None) -> str:
    """Millijoules as joules."""
    return number(None if millijoules is None else millijoules / 1_000)


def moment(value: datetime | None) -> str:
    """An instant in UTC, to the second."""
    return "–" if value is None else f"{value:%Y-%m-%d %H:%M:%S} UTC"


def seconds(value: float | None) -> str:
    """A duration as a person says it."""
    if value is None:
        return "–"
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def verdict(metric: MetricComparison | VerdictView) -> str:
    """A verdict in words, with its size."""
    match metric.verdict:
        case "saves" if metric.ratio is not None:
            return f"saves {100 * (1 - metric.ratio):.1f} %"
        case "costs_more" if metric.ratio is not None:
            return f"costs {100 * (metric.ratio - 1):.1f} % more"
        case "no_difference_shown":
            return "no difference shown"
    return "not comparable"


def interval(metric: MetricComparison) -> str:
    """A ratio, never without its interval."""
    if metric.ratio is None:
        return "–"
    if metric.ratio_low is None or metric.ratio_high is None:
        return f"{metric.ratio:.3f} [no interval]"
    return f"{metric.ratio:.3f} [{metric.ratio_low:.3f}, {metric.ratio_high:.3f}]"


def columns(comparison: ComparisonView) -> list[tuple[str, str]]:
    """Names and titles of the metrics that some arm has a value in; training as a whole only without a target."""
    known = {
        metric.metric for arm in comparison.arms for metric in arm.metrics if metric.arm_mean is not None
    }
    to_target = bool({"energy_to_target_mj", "seconds_to_target"} & known)
    left_out = {"energy_training_mj", "training_s"} if to_target else set()
    return [(name, title) for name, title in COLUMNS if name in known - left_out]


def arm_mean(arm: ArmComparison, name: str) -> str:
    """An arm's mean in a metric, in the unit of its column."""
    return _mean(name, [metric.arm_mean for metric in arm.metrics if metric.metric == name])


def baseline_mean(comparison: ComparisonView, name: str) -> str:
    """The baseline's mean in a metric, in the unit of its column."""
    means = [
        metric.baseline_mean for arm in comparison.arms for metric in arm.metrics if metric.metric == name
    ]
    return _mean(name, means)


def _mean(name: str, means: Sequence[float | None]) -> str:
    mean = next((mean for mean in means if mean is not None), None)
    return joules(mean) if name.endswith("_mj") else number(mean)


def state_class(state: str) -> str:
    """Style of a state's pill."""
    return STATE_CLASSES.get(state, "")


def verdict_class(name: str) -> str:
    """Style of a verdict's pill."""
    return VERDICT_CLASSES.get(name, "")


def ended(runs: dict[str, int]) -> str:
    """Runs that have ended, of all."""
    total = sum(runs.values())
    return f"{total - runs.get('queued', 0) - runs.get('running', 0)} of {total}"


FILTERS: dict[str, Callable[..., Any]] = {
    "number": number,
    "joules": joules,
    "moment": moment,
    "seconds": seconds,
    "verdict": verdict,
    "interval": interval,
    "arm_mean": arm_mean,
    "baseline_mean": baseline_mean,
    "state_class": state_class,
    "verdict_class": verdict_class,
    "ended": ended,
}
"""By the names that templates use."""
