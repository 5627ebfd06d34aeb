"""Comparisons as they are shown, in one experiment and across all."""

from datetime import datetime
from typing import Literal

from services.views.base import View

Verdict = Literal["saves", "costs_more", "no_difference_shown", "not_comparable"]
"""What a comparison says."""


class ExcludedRound(View):
    """A round that a comparison leaves out."""

    round: int
    """From 0."""
    reason: str
    """Why."""


class MetricComparison(View):
    """One arm against the baseline in one metric, paired by round."""

    metric: str
    """Name of the run's column."""
    is_primary: bool
    """Whether the experiment's verdict rests on it."""
    verdict: Verdict
    """What may be said."""
    sentence: str
    """The same for a person, never without its interval."""
    ratio: float | None
    """Geometric mean of arm / baseline over the rounds; None without pairs."""
    ratio_low: float | None
    """Lower end of the 95 % interval."""
    ratio_high: float | None
    """Upper end of the 95 % interval."""
    pairs: int
    """Rounds compared."""
    rounds_for_precision: int | None = None
    """Rounds after which the interval can be expected to be as narrow as wished, going by the spread between
    rounds so far; None with fewer than three."""
    arm_mean: float | None
    """Geometric mean of the arm's values in the compared rounds."""
    baseline_mean: float | None
    """Geometric mean of the baseline's values in the compared rounds."""
    excluded: tuple[ExcludedRound, ...]
    """Rounds left out."""
    reason: str | None
    """Why there is no verdict."""
    flags: tuple[str, ...]
    """What stands beside it and does not forbid a verdict."""
    blocking_flags: tuple[str, ...]
    """What forbids a verdict."""


class ArmComparison(View):
    """One arm against the baseline."""

    arm: str
    """Name."""
    strategy: str
    """How it is split."""
    control_of: tuple[str, ...]
    """Phantom arms that it was added for."""
    primary: MetricComparison
    """The comparison that the verdict rests on."""
    metrics: tuple[MetricComparison, ...]
    """All of them, the primary one among them."""
    parameters_ratio: float | None
    """Weights of the arm over weights of the baseline."""


class ComparisonView(View):
    """All arms of an experiment against its baseline."""

    experiment_id: str
    """The experiment."""
    experiment_state: str
    """Its state; the answer may change until it is final."""
    baseline: str
    """Arm that the others are compared with."""
    primary_metric: str
    """What the verdicts rest on."""
    rounds_planned: int
    """Passes over all arms that were asked for, without those that turned out not to be needed."""
    precision: float | None = None
    """Half-width of an interval that `rounds_for_precision` is for, as a share of the ratio: 0.02 is ± 2 %."""
    method: str | None
    """How energy was read (`mixed` where runs differ); None if unknown."""
    scope: str | None
    """What the readings cover."""
    estimated: bool
    """Whether the energies are estimates, which every table and plot must say."""
    arms: tuple[ArmComparison, ...]
    """In the plan's order, without the baseline."""
    final: bool
    """Whether the experiment has ended, so that this is the stored answer."""
    computed_at: datetime
    """When."""


class VerdictView(View):
    """What an ended experiment says of one arm, in its primary metric."""

    arm: str
    """Name of the arm."""
    metric: str
    """What the verdict rests on."""
    verdict: Verdict
    """What may be said."""
    sentence: str
    """The same for a person."""
    ratio: float | None
    """Geometric mean of arm / baseline."""
    ratio_low: float | None
    """Lower end of the 95 % interval."""
    ratio_high: float | None
    """Upper end of the 95 % interval."""
    estimated: bool
    """Whether it rests on estimates, which must be said wherever it is shown."""


class FindingView(VerdictView):
    """What one ended experiment says of one arm in one metric, with what the arm was."""

    experiment_id: str
    """The experiment."""
    experiment_name: str
    """Its name."""
    tags: dict[str, str]
    """Its tags."""
    submitted_at: datetime
    """When it was accepted."""
    devices: tuple[str, ...]
    """Models of its boards or processors."""
    strategy: str
    """How the arm is split."""
    world_size: int
    """Ranks, p."""
    width: int
    """Neurons per hidden layer, n."""
    depth: int
    """Hidden layers, L."""
    ghosts: int | None
    """Ghosts per rank, k; None unless phantom."""
    dtype: str
    """Number format; `tf32` is float32 whose matrix products may use TF32."""
    baseline: str
    """Arm that it was compared with."""
    is_primary: bool
    """Whether the experiment's verdict rests on this metric."""
    pairs: int
    """Rounds compared."""
    estimated: bool
    """Whether the energies are estimates and not measured."""
    loss_differs: bool
    """Whether the arms ended at different losses."""
    flags: tuple[str, ...]
    """What stands beside the verdict, or in its way."""
