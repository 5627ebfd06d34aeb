"""What the service answers, as the client reads it; fields that this version does not know are kept.

Energies are in millijoules (`_mj`), times in seconds (`_s`) or UTC. Unknown is None; a float that is not
finite is None with its name (`nan`, `inf`, `-inf`) in `non_finite`. Tests hold these to the service's views.
"""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Verdict = Literal["saves", "costs_more", "no_difference_shown", "not_comparable"]


class Answer(BaseModel):
    """Base of all answers: frozen; what a newer service adds is kept, so that `--json` shows all of it."""

    model_config = ConfigDict(extra="allow", frozen=True)


class FieldProblem(Answer):
    """What is wrong with one field of a request or a spec, or worth knowing about it."""

    field: str
    value: str | None = None
    limit: str | None = None
    message: str


class Problem(Answer):
    """A problem document (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str | None = None
    errors: tuple[FieldProblem, ...] = ()


class Submitted(Answer):
    """An accepted experiment."""

    id: str
    state: str


class Arm(Answer):
    """One arm of an experiment."""

    name: str
    position: int
    strategy: str
    world_size: int
    width: int
    depth: int
    ghosts: int | None
    dtype: str
    control_of: tuple[str, ...]
    is_baseline: bool


class Phase(Answer):
    """What an experiment is doing, and since when."""

    name: str
    since: datetime
    elapsed_s: float | None


class Timings(Answer):
    """Where the time went; None for what has not begun."""

    queued_s: float | None
    cluster_s: float | None
    start_up_s: float | None
    set_up_s: float | None
    running_s: float | None
    total_s: float


class Device(Answer):
    """A board or processor that energy is read from."""

    host: str
    uuid: str
    kind: str | None
    name: str | None
    method: str | None
    scope: str | None
    reason: str | None


class Experiment(Answer):
    """One experiment."""

    id: str
    name: str
    description: str
    tags: dict[str, str]
    state: str
    is_terminal: bool
    reason: str | None
    message: str | None
    progress: str | None
    priority: int
    attempt: int
    baseline: str
    arms: tuple[Arm, ...]
    rounds: int
    runs: dict[str, int]
    phase: Phase
    timings: Timings
    ray_job_id: str | None
    ray_dashboard_url: str | None
    environment: dict[str, Any] | None
    cancel_requested_at: datetime | None
    submitted_at: datetime
    finished_at: datetime | None


class ExperimentDetail(Experiment):
    """One experiment with its devices, and its spec with defaults filled in."""

    devices: tuple[Device, ...]
    spec: dict[str, Any]


class Run(Answer):
    """One arm in one round; energies over the arm's boards."""

    id: str
    experiment_id: str
    arm: str
    round: int
    position: int
    state: str
    is_terminal: bool
    reason: str | None
    message: str | None
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    steps: int | None
    training_s: float | None
    energy_training_mj: float | None
    energy_per_step_mj: float | None
    seconds_per_step: float | None
    target_step: int | None
    energy_to_target_mj: float | None
    seconds_to_target: float | None
    final_evaluation_loss: float | None
    non_finite: dict[str, str]
    method: str | None
    scope: str | None
    energy_reason: str | None
    step_mode: str | None = None
    step_mode_reason: str | None = None
    compiled: bool | None = None
    exchange: str | None = None
    exchange_reason: str | None = None
    flags: tuple[str, ...]
    parameters: int | None


class MetricSeries(Answer):
    """One metric of one run in order of step; the lists are equally long."""

    name: str
    step: tuple[int, ...]
    value: tuple[float | None, ...]
    non_finite: dict[int, str]
    energy_mj: tuple[float | None, ...]
    training_s: tuple[float | None, ...]


class MetricHistory(Answer):
    """Metrics of one run."""

    run_id: str
    attempt: int
    series: tuple[MetricSeries, ...]


class PowerSeries(Answer):
    """Power of one device in order; the lists are equally long."""

    host: str
    device_uuid: str
    device_name: str | None
    method: str
    charged: bool
    at: tuple[datetime, ...]
    power_mw: tuple[float | None, ...]
    sample_count: int
    bucket_s: float | None


class PowerHistory(Answer):
    """Power during one run."""

    run_id: str
    attempt: int
    series: tuple[PowerSeries, ...]


class MetricComparison(Answer):
    """One arm against the baseline in one metric, paired by round, with a 95 % interval of the ratio."""

    metric: str
    is_primary: bool
    verdict: Verdict
    sentence: str
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    pairs: int
    rounds_for_precision: int | None = None
    arm_mean: float | None
    baseline_mean: float | None
    reason: str | None
    flags: tuple[str, ...]
    blocking_flags: tuple[str, ...]


class ArmComparison(Answer):
    """One arm against the baseline."""

    arm: str
    strategy: str
    control_of: tuple[str, ...]
    primary: MetricComparison
    metrics: tuple[MetricComparison, ...]
    parameters_ratio: float | None

    def metric(self, name: str) -> MetricComparison | None:
        """The comparison in that metric; None if there is none."""
        return next((metric for metric in self.metrics if metric.metric == name), None)


class Comparison(Answer):
    """All arms of an experiment against its baseline."""

    experiment_id: str
    experiment_state: str
    baseline: str
    primary_metric: str
    rounds_planned: int
    precision: float | None = None
    method: str | None
    scope: str | None
    estimated: bool
    arms: tuple[ArmComparison, ...]
    final: bool


class Finding(Answer):
    """What one ended experiment says of one arm in one metric, with what the arm was."""

    arm: str
    metric: str
    verdict: Verdict
    sentence: str
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    experiment_id: str
    experiment_name: str
    tags: dict[str, str]
    submitted_at: datetime
    devices: tuple[str, ...]
    strategy: str
    world_size: int
    width: int
    depth: int
    ghosts: int | None
    dtype: str
    baseline: str
    pairs: int
    estimated: bool
    loss_differs: bool
    flags: tuple[str, ...]


class FindingPage(Answer):
    """Part of a list of findings."""

    items: tuple[Finding, ...]
    next_cursor: str | None = None


class QueuedPriority(Answer):
    """Experiments that wait at one priority."""

    priority: int
    queued: int


class Queue(Answer):
    """The queue as it is."""

    paused: bool
    reason: str | None
    paused_at: datetime | None
    queued: int
    by_priority: tuple[QueuedPriority, ...]
    oldest_queued_s: float | None


class ArmCost(Answer):
    """What one arm costs by the formulas."""

    arm: str
    strategy: str
    world_size: int
    width: int
    control_of: tuple[str, ...]
    parameters: int
    flops_per_step: float
    bytes_sent_per_step: float
    memory_per_rank_bytes: int


class Validation(Answer):
    """What a spec would need and cost."""

    valid: bool
    problems: tuple[FieldProblem, ...]
    warnings: tuple[FieldProblem, ...]
    baseline: str
    arms: tuple[ArmCost, ...]
    rounds: int
    runs: int
    ranks: int
    longest_s: float


class Check(Answer):
    """One thing that the service needs."""

    name: str
    ok: bool
    needed: bool
    detail: str


class Readiness(Answer):
    """Whether the service can do its work."""

    status: Literal["ready", "degraded", "unready"]
    checks: tuple[Check, ...]

    def check(self, name: str) -> Check | None:
        """The check of that name."""
        return next((check for check in self.checks if check.name == name), None)


class Occurrence(Answer):
    """One thing that happened to an experiment or to one of its runs."""

    id: int
    kind: str
    experiment_id: str
    run_id: str | None
    attempt: int
    at: datetime
    is_last: bool
    data: dict[str, Any]


class ExperimentPage(Answer):
    """Part of the list of experiments."""

    items: tuple[Experiment, ...]
    next_cursor: str | None = None


class RunPage(Answer):
    """Part of the list of an experiment's runs."""

    items: tuple[Run, ...]
    next_cursor: str | None = None
