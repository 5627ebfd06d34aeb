"""Two arms of one experiment, paired by round: ratio, interval, verdict, and what stands in the way.

A pair is what both arms gave in one round. Its log-ratio cancels whatever both shared: boards, temperature,
seed, hour. Rounds without a sound pair are left out, each with its reason; three pairs make a verdict.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phantom_core.board_limits import BoardLimits
from phantom_core.flags import FLAGS, Flag, blocking
from phantom_core.intervals import FEWEST_PAIRS, RatioInterval, ratio_intervals
from phantom_core.meters.windows import window_flags
from phantom_core.precision import rounds_to_expect
from services.arm_runs import ArmRuns, Outcome
from services.metrics import METRICS, Kind, Metric
from services.states import RunState
from services.summaries import ordered
from services.tables import Arm, Run
from services.verdicts import Finding, sentence
from services.views import ArmComparison, ExcludedRound, MetricComparison, Verdict

LOSS_TOLERANCE = 0.01
"""Losses that differ by more than this share are said beside a verdict; an interval with 1 in it shows no equality."""


@dataclass(frozen=True)
class Pairs:
    """One metric of two arms, round by round."""

    rounds: tuple[int, ...]
    arm: tuple[float, ...]
    baseline: tuple[float, ...]
    excluded: tuple[ExcludedRound, ...]
    flags: frozenset[str]
    blocked: frozenset[str]
    bounds: tuple[float, ...] = ()
    """What the readings of each pair may be off by together, as a factor of their ratio, less 1."""

    @property
    def log_ratios(self) -> list[float]:
        """ln(arm / baseline) of each pair."""
        return [math.log(a) - math.log(b) for a, b in zip(self.arm, self.baseline, strict=True)]


@dataclass(frozen=True)
class Asked:
    """What an experiment asks of its comparison."""

    primary: str
    """Name of the metric that the verdict rests on."""
    rounds: int
    """Passes over all arms: those asked for, without those that turned out not to be needed."""
    seed: int
    """Of the bootstrap."""
    precision: float
    """Wished half-width of an interval, as a share of its ratio."""
    energy_precision: float
    """Wished bound on the reading error of an energy, as a share of it."""
    evaluation_interval: int
    """Steps from one evaluation, which looks for the target, to the next."""
    level: float
    """Level at which intervals are made (`intervals.SEQUENTIAL_LEVEL` where one decided when to stop)."""


def compare_arm(arm: ArmRuns, baseline: ArmRuns, asked: Asked) -> ArmComparison:
    """One arm against the baseline in every metric that the experiment has."""
    has_target = asked.primary == "energy_to_target_mj"
    metrics = [metric for metric in METRICS if has_target or not metric.of_target]
    pairs = {metric.name: _pair(metric, arm, baseline, asked) for metric in metrics}
    intervals = _intervals(pairs, asked)
    loss_differs = _differs(intervals.get("final_evaluation_loss"))
    compared = []
    for metric in metrics:
        # What is told of a target was measured at it, whatever came after.
        concerned = metric.kind is not Kind.LOSS and not metric.of_target
        extra = {Flag.LOSS_DIFFERS} if loss_differs and concerned else set()
        compared.append(_compared(metric, pairs[metric.name], intervals.get(metric.name), extra, asked))
    ours, theirs = arm.parameters, baseline.parameters
    return ArmComparison(
        arm=arm.arm.name,
        strategy=arm.arm.strategy,
        control_of=tuple(arm.arm.control_of),
        primary=next(metric for metric in compared if metric.is_primary),
        metrics=tuple(compared),
        parameters_ratio=ours / theirs if ours and theirs else None,
    )


def _pair(metric: Metric, arm: ArmRuns, baseline: ArmRuns, asked: Asked) -> Pairs:
    rounds, ours, theirs = [], [], []
    excluded: list[ExcludedRound] = []
    flags: set[str] = set()
    blocked: set[str] = set()
    bounds = []
    for number in sorted(arm.by_round.keys() & baseline.by_round.keys()):
        a, b = arm.by_round[number], baseline.by_round[number]
        reason = (
            _unfinished(a, b, arm, baseline)
            or _without(metric, a.run, arm.arm.name)
            or _without(metric, b.run, baseline.arm.name)
        )
        raised = _flags(metric, a, b, arm.arm, baseline.arm)
        ours_off, theirs_off = (metric.bound(side.run) or 0.0 for side in (a, b))
        if max(ours_off, theirs_off) > asked.energy_precision:
            raised.add(Flag.IMPRECISE)
        if metric.of_target and _is_coarse(asked, a.run, b.run):
            raised.add(Flag.TARGET_COARSE)
        stops = blocking(raised)
        if reason is None and stops:
            reason = "; ".join(f"{flag.value}: {FLAGS[flag].meaning}" for flag in stops)
            blocked.update(flag.value for flag in stops)
        if reason is not None:
            excluded.append(ExcludedRound(round=number, reason=reason))
            continue
        rounds.append(number)
        ours.append(float(getattr(a.run, metric.name)))
        theirs.append(float(getattr(b.run, metric.name)))
        flags.update(raised)
        bounds.append((1 + ours_off) / (1 - theirs_off) - 1 if theirs_off < 1 else math.inf)
    return Pairs(
        tuple(rounds),
        tuple(ours),
        tuple(theirs),
        tuple(excluded),
        frozenset(flags),
        frozenset(blocked),
        tuple(bounds),
    )


def _is_coarse(asked: Asked, *runs: Run) -> bool:
    """Whether a target that was reached between two evaluations is told too roughly for the wished precision."""
    steps = [run.target_step for run in runs if run.target_step]
    return any(asked.evaluation_interval > asked.energy_precision * each for each in steps)


def _unfinished(a: Outcome, b: Outcome, arm: ArmRuns, baseline: ArmRuns) -> str | None:
    for side, runs in ((a, arm), (b, baseline)):
        if side.run.state != RunState.SUCCEEDED:
            why = f" ({side.run.reason})" if side.run.reason else ""
            return f"{runs.arm.name!r} is {side.run.state}{why}"
    return None


def _without(metric: Metric, run: Run, arm: str) -> str | None:
    """Why a run gives no value; None if it gives one."""
    value = getattr(run, metric.name)
    if value is None:
        strange = (run.non_finite or {}).get(metric.name)
        if strange is not None:
            return f"{metric.words} of {arm!r} is {strange}"
        if metric.of_target and run.target_step is None:
            return f"{arm!r} did not reach the target loss"
        why = f": {run.energy_reason}" if metric.kind is Kind.ENERGY and run.energy_reason else ""
        return f"{metric.words} of {arm!r} is unknown{why}"
    if not value > 0:
        return f"{metric.words} of {arm!r} is {value:g}, which has no ratio"
    return None


def _flags(metric: Metric, a: Outcome, b: Outcome, arm: Arm, baseline: Arm) -> set[str]:
    """What stands beside the pair in this metric."""
    raised = {flag for side in (a, b) for flag in side.run.flags or () if metric.minds(flag)}
    seconds = [metric.window_s(side.run) for side in (a, b)]
    if metric.kind is Kind.ENERGY:
        raised.update(flag for each in seconds if each is not None for flag in window_flags(each))
        if (a.run.method, a.run.scope) != (b.run.method, b.run.scope):
            raised.add(Flag.METHOD_CHANGED)
    if None not in (a.data, b.data) and a.data != b.data:
        raised.add(Flag.DATA_DIFFERS)
    if metric.of_step and _rows_per_step(a.run) != _rows_per_step(b.run):
        raised.add(Flag.BATCH_DIFFERS)
    if metric.kind is not Kind.LOSS:
        if not (_keys(a) <= _keys(b) or _keys(b) <= _keys(a)) or _names(a) != _names(b):
            raised.add(Flag.HARDWARE_DIFFERS)
        if _limits(a) != _limits(b):
            raised.add(Flag.CLOCKS_DIFFER)
        if arm.dtype != baseline.dtype:
            raised.add(Flag.DTYPE_DIFFERS)
    return raised


def _rows_per_step(run: Run) -> float | None:
    return run.samples / run.steps if run.samples and run.steps else None


def _keys(side: Outcome) -> set[int]:
    return {board.key for board in side.boards}


def _names(side: Outcome) -> set[str | None]:
    return {board.name for board in side.boards}


def _limits(side: Outcome) -> set[BoardLimits]:
    return {board.limits for board in side.boards}


def _intervals(pairs: Mapping[str, Pairs], asked: Asked) -> dict[str, RatioInterval]:
    """Intervals of all metrics that have enough pairs; equal numbers of pairs in one go, which is quicker."""
    by_count: dict[int, list[str]] = {}
    for name, each in pairs.items():
        if len(each.rounds) >= FEWEST_PAIRS:
            by_count.setdefault(len(each.rounds), []).append(name)
    found: dict[str, RatioInterval] = {}
    for names in by_count.values():
        intervals = ratio_intervals([pairs[name].log_ratios for name in names], asked.seed, asked.level)
        found.update(zip(names, intervals, strict=True))
    return found


def _differs(loss: RatioInterval | None) -> bool:
    return loss is not None and abs(loss.ratio - 1) > LOSS_TOLERANCE


def _compared(
    metric: Metric,
    pairs: Pairs,
    interval: RatioInterval | None,
    extra: set[Flag],
    asked: Asked,
) -> MetricComparison:
    verdict = _verdict(interval)
    reason = None if interval else _too_few(pairs, asked.rounds)
    flags = set(pairs.flags) | ({flag.value for flag in extra} if interval else set())
    if interval is not None and _drifts(pairs):
        flags.add(Flag.DRIFT.value)
    if interval is not None and _rests_on_readings(interval, pairs):
        flags.add(Flag.IMPRECISE.value)
    finding = Finding(metric, verdict, interval, len(pairs.rounds), reason, Flag.ESTIMATED in flags)
    return MetricComparison(
        metric=metric.name,
        is_primary=metric.name == asked.primary,
        verdict=verdict,
        sentence=sentence(finding),
        ratio=interval.ratio if interval else None,
        ratio_low=interval.low if interval else None,
        ratio_high=interval.high if interval else None,
        pairs=len(pairs.rounds),
        rounds_for_precision=rounds_to_expect(pairs.log_ratios, asked.rounds, asked.precision, asked.level),
        arm_mean=_geometric_mean(pairs.arm),
        baseline_mean=_geometric_mean(pairs.baseline),
        excluded=pairs.excluded,
        reason=reason,
        flags=tuple(ordered(flags)),
        blocking_flags=tuple(ordered(pairs.blocked)),
    )


def _rests_on_readings(interval: RatioInterval, pairs: Pairs) -> bool:
    """Whether an interval that leaves 1 out has it in once the readings' own errors, which no round averages out, are
    taken at their worst.
    """
    off = math.fsum(pairs.bounds) / len(pairs.bounds)
    if interval.high < 1:
        return interval.high * (1 + off) >= 1
    return interval.low > 1 and interval.low / (1 + off) <= 1


def _verdict(interval: RatioInterval | None) -> Verdict:
    if interval is None:
        return "not_comparable"
    if interval.high < 1:
        return "saves"
    return "costs_more" if interval.low > 1 else "no_difference_shown"


def _too_few(pairs: Pairs, rounds_planned: int) -> str:
    have = len(pairs.rounds)
    if rounds_planned < FEWEST_PAIRS:
        return f"{rounds_planned} round{'s' * (rounds_planned != 1)} asked for, {FEWEST_PAIRS} are needed"
    causes = Counter(each.reason for each in pairs.excluded)
    why = "; ".join(
        f"{reason} ({count} round{'s' * (count != 1)})" for reason, count in causes.most_common(3)
    )
    return f"{have} of {rounds_planned} rounds can be paired, {FEWEST_PAIRS} are needed" + (
        f": {why}" if why else ""
    )


def _drifts(pairs: Pairs) -> bool:
    """Whether the ratio moves with the order of the rounds, by more than chance in a hundred."""
    if len(pairs.rounds) < 5 or len(set(pairs.log_ratios)) == 1:
        return False
    from scipy import stats

    return bool(stats.linregress(pairs.rounds, pairs.log_ratios).pvalue < 0.01)


def _geometric_mean(values: Sequence[float]) -> float | None:
    return math.exp(math.fsum(math.log(value) for value in values) / len(values)) if values else None
