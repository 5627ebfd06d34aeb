"""How figures and comparisons look on a terminal. One place, so that no command can show a bare ratio."""

import math
from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from client.models import ArmComparison, Comparison, Experiment, MetricComparison, Run, Validation, Verdict

VERDICT_STYLES: dict[Verdict, str] = {
    "saves": "bold green",
    "costs_more": "bold red",
    "no_difference_shown": "bold",
    "not_comparable": "yellow",
}
STATE_STYLES = {
    "queued": "cyan",
    "leased": "cyan",
    "starting": "cyan",
    "running": "blue",
    "succeeded": "green",
    "failed": "red",
    "lost": "red",
    "diverged": "yellow",
    "cancelled": "yellow",
}
ENERGY_COLUMNS = (
    ("energy_to_target_mj", "J to target"),
    ("energy_training_mj", "J training"),
    ("energy_per_step_mj", "J per step"),
    ("seconds_to_target", "s to target"),
    ("training_s", "s training"),
    ("seconds_per_step", "s per step"),
)
"""Metrics shown with each arm, where the comparison has them."""
METRIC_WORDS = {
    "energy_to_target_mj": "energy to the target loss",
    "energy_training_mj": "energy of training",
    "energy_per_step_mj": "energy per step",
    "energy_per_sample_mj": "energy per sample",
    "seconds_to_target": "time to the target loss",
    "training_s": "time of training",
    "seconds_per_step": "time per step",
}
"""What a metric is, for a sentence."""
ESTIMATE_LABEL = "ESTIMATE, not a measurement"
"""Stands wherever an energy is shown that no meter read."""


def number(value: float | None, digits: int = 3) -> str:
    """A number with that many significant digits; a dash for unknown."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def quantity(metric: str, value: float | None) -> str:
    """A metric's value in the unit that tables show: joules for `_mj`, the metric's own otherwise."""
    if value is not None and metric.endswith("_mj"):
        value /= 1_000
    return number(value)


def interval(metric: MetricComparison) -> str:
    """A ratio with its interval: `0.61 [0.58, 0.65]`; a dash where there is none."""
    if metric.ratio is None:
        return "-"
    if metric.ratio_low is None or metric.ratio_high is None:
        return f"{metric.ratio:.3f} [no interval]"
    return f"{metric.ratio:.3f} [{metric.ratio_low:.3f}, {metric.ratio_high:.3f}]"


def verdict(metric: MetricComparison) -> str:
    """A verdict in words, with its size; the reason why there is none stands below the table."""
    match metric.verdict:
        case "saves" if metric.ratio is not None:
            return f"saves {100 * (1 - metric.ratio):.1f} %"
        case "costs_more" if metric.ratio is not None:
            return f"costs {100 * (metric.ratio - 1):.1f} % more"
        case "no_difference_shown":
            return "no difference shown"
    return "not comparable"


def method_label(comparison: Comparison) -> str:
    """How the energies were read, with the estimate's label where they were not measured."""
    label = comparison.method or "unknown"
    if comparison.scope:
        label += f" ({comparison.scope})"
    return f"{label}: {ESTIMATE_LABEL}" if comparison.estimated else label


def answer_sentences(comparison: Comparison) -> list[str]:
    """One sentence per arm of the user's own that has a verdict; the controls are in the table."""
    own = [arm for arm in comparison.arms if not arm.control_of] or list(comparison.arms)
    label = f" [{ESTIMATE_LABEL}]" if comparison.estimated else ""
    what = METRIC_WORDS.get(comparison.primary_metric, comparison.primary_metric)
    sentences = [
        f"{arm.arm} against {comparison.baseline}, {what}: {arm.primary.sentence}{label}"
        for arm in own
        if arm.primary.verdict != "not_comparable"
    ]
    return sentences or [
        f"no verdict on any arm against {comparison.baseline}; the reasons stand with the table"
    ]


def comparison_table(comparison: Comparison) -> RenderableType:
    """The answer as a table: ratio with interval, verdict, and energies and seconds beside each arm."""
    shown = [
        (name, title)
        for name, title in ENERGY_COLUMNS
        if any(
            (metric := arm.metric(name)) is not None and metric.arm_mean is not None
            for arm in comparison.arms
        )
    ]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("arm")
    table.add_column("ratio [95 % interval]", justify="right")
    table.add_column("verdict")
    table.add_column("rounds", justify="right")
    for _, title in shown:
        table.add_column(title, justify="right")
    table.add_column("flags")
    table.add_row(
        Text(f"{comparison.baseline} (baseline)"),
        "1",
        "",
        "",
        *(quantity(name, _baseline_mean(comparison.arms, name)) for name, _ in shown),
        "",
    )
    for arm in comparison.arms:
        metric = arm.primary
        flags = [*(f"{flag}!" for flag in metric.blocking_flags), *metric.flags]
        table.add_row(
            Text(f"{arm.arm} (control)" if arm.control_of else arm.arm),
            interval(metric),
            Text(verdict(metric), VERDICT_STYLES[metric.verdict]),
            f"{metric.pairs}/{comparison.rounds_planned}",
            *(quantity(name, _arm_mean(arm, name)) for name, _ in shown),
            Text(", ".join(flags)),
        )
    reasons = [
        Text(f"{arm.arm}: {arm.primary.reason}")
        for arm in comparison.arms
        if arm.primary.verdict == "not_comparable" and arm.primary.reason
    ]
    facts = Text(
        f"paired by round on {comparison.primary_metric}; energy read by {method_label(comparison)}"
        + (
            ""
            if comparison.final
            else f"; the experiment is {comparison.experiment_state}, so this may still change"
        )
    )
    return Group(table, *reasons, facts)


def experiments_table(experiments: Sequence[Experiment]) -> Table:
    """Experiments, one a line."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("id", "name", "state", "runs", "submitted (UTC)"):
        table.add_column(title)
    for experiment in experiments:
        ended, total = run_counts(experiment)
        table.add_row(
            experiment.id,
            Text(experiment.name),
            Text(experiment.state, STATE_STYLES.get(experiment.state, "")),
            f"{ended}/{total}",
            f"{experiment.submitted_at:%Y-%m-%d %H:%M:%S}",
        )
    return table


def runs_table(runs: Sequence[Run]) -> Table:
    """Runs, one a line; rounds are counted from 1 for people, from 0 in the API."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("round", "arm", "state"):
        table.add_column(title)
    for title in ("steps", "loss", "J to target", "J per step", "s per step"):
        table.add_column(title, justify="right")
    table.add_column("method and flags")
    for run in runs:
        loss = run.non_finite.get("final_evaluation_loss") or number(run.final_evaluation_loss)
        table.add_row(
            str(run.round + 1),
            Text(run.arm),
            Text(run.state + (f": {run.reason}" if run.reason else ""), STATE_STYLES.get(run.state, "")),
            "-" if run.steps is None else f"{run.steps:,}",
            loss,
            quantity("energy_to_target_mj", run.energy_to_target_mj),
            quantity("energy_per_step_mj", run.energy_per_step_mj),
            number(run.seconds_per_step),
            Text(", ".join(part for part in (run.method, *run.flags) if part)),
        )
    return table


def validation_table(validation: Validation) -> RenderableType:
    """What a spec would need, arm by arm, and what is wrong with it."""
    parts: list[RenderableType] = [
        *(Text(f"error: {problem.field}: {problem.message}", "red") for problem in validation.problems),
        *(Text(f"warning: {warning.field}: {warning.message}", "yellow") for warning in validation.warnings),
    ]
    if validation.arms:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("arm")
        for title in ("ranks", "width", "weights", "FLOPs per step", "MB sent per step", "MB per rank"):
            table.add_column(title, justify="right")
        for arm in validation.arms:
            name = f"{arm.arm} (control)" if arm.control_of else arm.arm
            table.add_row(
                Text(f"{name} (baseline)" if arm.arm == validation.baseline else name),
                str(arm.world_size),
                f"{arm.width:,}",
                f"{arm.parameters:,}",
                f"{arm.flops_per_step:.3g}",
                number(arm.bytes_sent_per_step / 1e6),
                number(arm.memory_per_rank_bytes / 1e6),
            )
        parts.append(table)
        parts.append(
            Text(
                f"{validation.runs} runs ({len(validation.arms)} arms x {validation.rounds} rounds) on "
                f"{validation.ranks} ranks; training takes at most {validation.longest_s:,.0f} s"
            )
        )
    return Group(*parts)


def run_counts(experiment: Experiment) -> tuple[int, int]:
    """Runs that have ended, and all runs."""
    total = sum(experiment.runs.values())
    return total - experiment.runs.get("queued", 0) - experiment.runs.get("running", 0), total


def is_comparable(comparison: Comparison) -> bool:
    """Whether any arm has a verdict that says something."""
    return any(arm.primary.verdict != "not_comparable" for arm in comparison.arms)


def _arm_mean(arm: ArmComparison, name: str) -> float | None:
    metric = arm.metric(name)
    return None if metric is None else metric.arm_mean


def _baseline_mean(arms: Sequence[ArmComparison], name: str) -> float | None:
    for arm in arms:
        metric = arm.metric(name)
        if metric is not None and metric.baseline_mean is not None:
            return metric.baseline_mean
    return None
