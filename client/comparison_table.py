"""How a comparison looks on a terminal. One place, so that no command can show a bare ratio."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from client.figures import quantity
from client.models import ArmComparison, Comparison, MetricComparison, Verdict

VERDICT_STYLES: dict[Verdict, str] = {
    "saves": "bold green",
    "costs_more": "bold red",
    "no_difference_shown": "bold",
    "not_comparable": "yellow",
}
FIGURE_COLUMNS = (
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
ONE_TABLE_WIDTH = 118
"""Columns from which verdicts and figures fit side by side."""
ESTIMATE_LABEL = "ESTIMATE, not a measurement"
"""Stands wherever an energy is shown that no meter read."""


class ComparisonTable:
    """The answer as a table: ratio with interval, verdict, energies and seconds beside each arm; notes below it.

    On a narrow terminal energies and seconds get a table of their own rather than columns two letters wide.
    """

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        names = {
            metric.metric for arm in comparison.arms for metric in arm.metrics if metric.arm_mean is not None
        }
        to_target = bool({"energy_to_target_mj", "seconds_to_target"} & names)
        self._columns = [
            (name, title)
            for name, title in FIGURE_COLUMNS
            if name in names and not (to_target and name in ("energy_training_mj", "training_s"))
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draws it in the width that there is."""
        if options.max_width >= ONE_TABLE_WIDTH:
            yield self._table(verdicts=True, figures=True)
        else:
            yield self._table(verdicts=True, figures=False)
            yield self._table(verdicts=False, figures=True)
        yield from self._notes()

    def _table(self, *, verdicts: bool, figures: bool) -> Table:
        comparison = self._comparison
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        table.add_column("arm", min_width=14)
        if verdicts:
            table.add_column("ratio [95 % interval]", justify="right", no_wrap=True)
            table.add_column("verdict")
            table.add_column("rounds", justify="right", no_wrap=True)
        for _, title in self._columns if figures else ():
            table.add_column(title, justify="right", no_wrap=True)
        baseline = [self._baseline(name) for name, _ in self._columns]
        table.add_row(
            Text(f"{comparison.baseline} (baseline)"),
            *(["1", "", ""] if verdicts else []),
            *(baseline if figures else []),
        )
        for arm in comparison.arms:
            metric = arm.primary
            said: list[str | Text] = [
                interval(metric),
                Text(verdict(metric), VERDICT_STYLES[metric.verdict]),
                f"{metric.pairs}/{comparison.rounds_planned}",
            ]
            means = [self._mean(arm, name) for name, _ in self._columns]
            table.add_row(
                Text(f"{arm.arm} (control)" if arm.control_of else arm.arm),
                *(said if verdicts else []),
                *(means if figures else []),
            )
        return table

    def _baseline(self, name: str) -> str:
        """The baseline's mean; of arms that were paired in other rounds each has one of its own."""
        means = _baseline_means(self._comparison.arms, name)
        return quantity(name, means[0]) if len(means) == 1 else "by arm" if means else quantity(name, None)

    def _mean(self, arm: ArmComparison, name: str) -> str:
        metric = arm.metric(name)
        told = quantity(name, None if metric is None else metric.arm_mean)
        if metric is None or len(_baseline_means(self._comparison.arms, name)) < 2:
            return told
        return f"{told} : {quantity(name, metric.baseline_mean)}"

    def _notes(self) -> Iterator[Text]:
        comparison = self._comparison
        what = METRIC_WORDS.get(comparison.primary_metric, comparison.primary_metric)
        yield Text(f"paired by round on {what}; energy read by {method_label(comparison)}")
        if not comparison.final:
            yield Text(f"the experiment is {comparison.experiment_state}, so this may still change")
        if any(len(_baseline_means(comparison.arms, name)) > 1 for name, _ in self._columns):
            yield Text(
                "a : b is an arm's mean and the baseline's in the same rounds, which are not those of every arm"
            )
        if rounds := rounds_sentence(comparison):
            yield Text(rounds)
        for arm in comparison.arms:
            if arm.primary.verdict == "not_comparable" and arm.primary.reason:
                yield Text(f"{arm.arm}: {arm.primary.reason}")
        flags = {arm.arm: _flags(arm.primary) for arm in comparison.arms}
        if len(set(flags.values())) == 1 and len(flags) > 1:
            flags = {"every arm": next(iter(flags.values()))}
        for name, text in flags.items():
            if text:
                yield Text(f"{name}: flagged {text}")


def _flags(metric: MetricComparison) -> str:
    """Flags in words; an exclamation mark on those that forbid a verdict."""
    return ", ".join([*(f"{flag}!" for flag in metric.blocking_flags), *metric.flags])


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
    """One sentence per arm of the user's own that has a verdict: the service's, which labels estimates."""
    own = [arm for arm in comparison.arms if not arm.control_of] or list(comparison.arms)
    what = METRIC_WORDS.get(comparison.primary_metric, comparison.primary_metric)
    sentences = [
        f"{arm.arm} against {comparison.baseline}, {what}: {arm.primary.sentence}"
        for arm in own
        if arm.primary.verdict != "not_comparable"
    ]
    return sentences or [
        f"no verdict on any arm against {comparison.baseline}; the reasons stand with the table"
    ]


def rounds_sentence(comparison: Comparison) -> str | None:
    """How many rounds each arm can be expected to need for the wished precision; None if nothing is known of it."""
    known = {
        arm.arm: arm.primary.rounds_for_precision
        for arm in comparison.arms
        if arm.primary.rounds_for_precision is not None
    }
    if comparison.precision is None or not known:
        return None
    needed = ", ".join(f"{name} {rounds}" for name, rounds in known.items())
    return f"rounds to expect for ± {100 * comparison.precision:g} %: {needed}"


def is_comparable(comparison: Comparison) -> bool:
    """Whether any arm has a verdict that says something."""
    return any(arm.primary.verdict != "not_comparable" for arm in comparison.arms)


def _baseline_means(arms: Sequence[ArmComparison], name: str) -> list[float]:
    """What the baseline took in the rounds of each arm, each figure once."""
    metrics = [arm.metric(name) for arm in arms]
    return list(
        dict.fromkeys(each.baseline_mean for each in metrics if each and each.baseline_mean is not None)
    )
