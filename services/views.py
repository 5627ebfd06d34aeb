"""What the service answers: read models of experiments, runs, histories, comparisons, validations.

Every one is made inside a session and used after it, so a view holds plain values only. Times are UTC.
Unknown is None, with a reason beside it where there is one. A float that isn't finite travels as None with
its name (`nan`, `inf`, `-inf`) in `non_finite`.
"""

from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from services.errors import Problem

Item = TypeVar("Item")

Verdict = Literal["saves", "costs_more", "no_difference_shown", "not_comparable"]
"""What a comparison says."""


class View(BaseModel):
    """Frozen; a field's docstring is its description."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ArmView(View):
    """One arm of an experiment."""

    name: str
    """Unique within the experiment."""
    position: int
    """Place in the plan: the user's arms in their order, then controls."""
    strategy: str
    """`dense`, `tensor`, `phantom`, `block_diagonal` or `low_rank`."""
    world_size: int
    """Ranks, p."""
    width: int
    """Neurons per hidden layer, n."""
    depth: int
    """Hidden layers, L."""
    ghosts: int | None
    """Ghosts per rank, k; None unless phantom."""
    dtype: str
    """Number format."""
    control_of: tuple[str, ...]
    """Phantom arms that it was added for; empty for the user's own arms."""
    is_baseline: bool
    """Whether the others are compared with it."""


class ArmDetail(ArmView):
    """One arm with everything that was resolved and computed for it."""

    settings: dict[str, Any]
    """The arm as it runs (`phantom_core.plan.PlannedArm`)."""
    cost: dict[str, Any] | None
    """What it costs by the formulas (`ArmCostView`), as computed when the experiment was accepted."""


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
    """Number format."""
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


class DeviceView(View):
    """A board or processor that energy was read from."""

    host: str
    """Host name."""
    uuid: str
    """NVML's UUID for GPUs; a name unique on the host for everything else."""
    kind: str | None
    """`cuda`, `rocm` or `cpu`; None until the worker group described it."""
    name: str | None
    """Model name."""
    method: str | None
    """How its energy is read; None if it can't be."""
    scope: str | None
    """What the reading covers."""
    reason: str | None
    """Why it can't be read, or what the method leaves out."""
    driver: str | None
    """Driver version."""
    power_limit_mw: float | None
    """Enforced power limit, milliwatts."""
    memory_bytes: int | None
    """Memory of the device."""


class TimingsView(View):
    """Where the time of an experiment went, in seconds; None for what has not begun."""

    queued_s: float | None
    """From submission until a dispatcher took it."""
    cluster_s: float | None
    """From there until the job was handed to the cluster."""
    start_up_s: float | None
    """From there until the worker group reported."""
    set_up_s: float | None
    """From there until the first run began."""
    running_s: float | None
    """From the first run until the end, or until now."""
    total_s: float
    """From submission until the end, or until now."""


class ExperimentView(View):
    """One experiment."""

    id: str
    """Also its job's submission id in Ray."""
    name: str
    """As submitted."""
    description: str
    """As submitted."""
    tags: dict[str, str]
    """As submitted."""
    state: str
    """`queued`, `leased`, `starting`, `running`, `succeeded`, `failed`, `cancelled` or `lost`."""
    is_terminal: bool
    """Whether the state is final."""
    reason: str | None
    """Why it is in this state, as one word of `phantom_core.protocol.Reason`."""
    message: str | None
    """The same for a person."""
    progress: str | None
    """Last line of progress from the job."""
    priority: int
    """Higher goes first."""
    attempt: int
    """Starts of its job so far."""
    version: int
    """Raised by every change; an entity tag."""
    baseline: str
    """Name of the arm that the others are compared with."""
    arms: tuple[ArmView, ...]
    """In the plan's order."""
    rounds: int
    """Passes over all arms."""
    runs: dict[str, int]
    """Number of runs in each state that has any."""
    timings: TimingsView
    """Where the time went."""
    ray_job_id: str | None
    """The job in Ray."""
    ray_dashboard_url: str | None
    """The job's page in Ray's dashboard."""
    environment: dict[str, Any] | None
    """Backend, ranks and versions, once the worker group reported."""
    verdicts: tuple[VerdictView, ...]
    """What it says of each arm, once it has ended."""
    cancel_requested_at: datetime | None
    """When somebody asked to cancel it."""
    delete_requested_at: datetime | None
    """When somebody asked to delete it; it goes when it has ended."""
    submitted_at: datetime
    """Accepted."""
    leased_at: datetime | None
    """Taken by a dispatcher."""
    starting_at: datetime | None
    """Handed to the cluster."""
    running_at: datetime | None
    """The worker group reported."""
    first_run_at: datetime | None
    """The first run began."""
    finished_at: datetime | None
    """Ended."""
    last_event_at: datetime | None
    """Last sign of life from the job."""


class JobAttemptView(View):
    """One start of an experiment's job."""

    attempt: int
    """From 1."""
    ray_job_id: str | None
    """The job in Ray; None if it was never submitted."""
    begun_at: datetime
    """Made ready to submit."""
    ended_at: datetime | None
    """Ended, or given up."""
    reason: str | None
    """Why another attempt had to be made; None for the last."""
    message: str | None
    """The same for a person."""


class ExperimentDetail(ExperimentView):
    """One experiment with its spec, its arms' settings and its devices."""

    arms: tuple[ArmDetail, ...]
    """In the plan's order."""
    devices: tuple[DeviceView, ...]
    """Boards and processors that energy is read from."""
    attempts: tuple[JobAttemptView, ...]
    """Every start of its job."""
    spec: dict[str, Any]
    """The spec as accepted, defaults filled in."""


class AttemptView(View):
    """One start of a run."""

    attempt: int
    """From 1."""
    outcome: str | None
    """How it ended; None while it has not."""
    reason: str | None
    """Why."""
    message: str | None
    """The same for a person."""
    started_at: datetime | None
    """Set-up began."""
    finished_at: datetime | None
    """Ended."""
    energy_mj: float | None
    """All its windows over the arm's boards, millijoules; None if unknown."""


class RunView(View):
    """One arm in one round. Energies in millijoules, over the arm's boards, each board counted once."""

    id: str
    """Unique."""
    experiment_id: str
    """The experiment."""
    arm: str
    """Name of the arm."""
    round: int
    """From 0."""
    position: int
    """Place in the round's order."""
    seed: int
    """Seed of weights and batches."""
    state: str
    """`queued`, `running`, `succeeded`, `diverged`, `failed` or `cancelled`."""
    is_terminal: bool
    """Whether the state is final."""
    reason: str | None
    """Why it is in this state."""
    message: str | None
    """The same for a person."""
    attempt: int
    """Starts so far."""
    started_at: datetime | None
    """Set-up began."""
    finished_at: datetime | None
    """Ended."""
    steps: int | None
    """Optimizer steps."""
    samples: int | None
    """Rows trained on."""
    training_s: float | None
    """Seconds of the training windows."""
    energy_training_mj: float | None
    """Gross energy of the training windows."""
    energy_training_uncertainty_mj: float | None
    """Half-width of its error bound."""
    energy_setup_mj: float | None
    """Gross energy of set-up: building, warming up, capturing."""
    energy_evaluation_mj: float | None
    """Gross energy of evaluations."""
    energy_idle_boards_mj: float | None
    """Energy of boards that the experiment held but the arm left idle; not charged to it."""
    steady_s: float | None
    """Seconds of the steady window; None without one."""
    steady_steps: int | None
    """Steps of the steady window."""
    energy_steady_mj: float | None
    """Gross energy of the steady window."""
    per_step_phase: str | None
    """Windows behind the figures per step: `steady` or `training`."""
    energy_per_step_mj: float | None
    """Millijoules per optimizer step."""
    energy_per_step_uncertainty_mj: float | None
    """Half-width of its error bound."""
    energy_per_sample_mj: float | None
    """Millijoules per row."""
    seconds_per_step: float | None
    """Seconds per optimizer step."""
    target_step: int | None
    """Step at which the target loss was reached."""
    energy_to_target_mj: float | None
    """Gross training energy up to that step."""
    seconds_to_target: float | None
    """Training seconds up to that step."""
    final_train_loss: float | None
    """Mean over the last interval."""
    final_evaluation_loss: float | None
    """Loss on the evaluation rows at the end."""
    non_finite: dict[str, str]
    """Names of values above that are NaN or infinite."""
    idle_power_mw: float | None
    """Idle power of the arm's boards together, measured before the first round."""
    energy_net_mj: float | None
    """`energy_training_mj` less idle power times seconds."""
    energy_integral_mj: float | None
    """Integral of sampled power over the training windows."""
    sample_count: int | None
    """Power samples inside them."""
    largest_gap_s: float | None
    """Longest time between two samples there."""
    method: str | None
    """How energy was read; `estimate` is not a measurement."""
    scope: str | None
    """What the readings cover."""
    energy_reason: str | None
    """Why an energy is unknown, or what else must be said."""
    flags: tuple[str, ...]
    """What stands beside the figures (`phantom_core.flags`)."""
    step_mode: str | None
    """`graph` or `eager`."""
    step_mode_reason: str | None
    """Why not in a graph."""
    parameters: int | None
    """Trainable weights, counted."""
    peak_memory_bytes: int | None
    """Largest over the ranks."""
    flops_per_step: float | None
    """Over all ranks, from the formulas."""
    bytes_sent_per_step: float | None
    """Over all ranks, counted."""
    attempts: tuple[AttemptView, ...] = ()
    """Every start; empty in lists."""


class Page(View, Generic[Item]):
    """Part of a list."""

    items: tuple[Item, ...]
    """In order."""
    next_cursor: str | None
    """Pass it to get what follows; None at the end."""


class MetricSeries(View):
    """One metric of one run, in order of step; the lists are equally long."""

    name: str
    """What was measured, units in the name."""
    step: tuple[int, ...]
    """Optimizer steps done."""
    value: tuple[float | None, ...]
    """Values; None where not finite."""
    non_finite: dict[int, str]
    """Index of each value that is not finite: `nan`, `inf` or `-inf`."""
    energy_mj: tuple[float | None, ...]
    """Gross training energy so far."""
    training_s: tuple[float | None, ...]
    """Training seconds so far."""


class MetricHistory(View):
    """Metrics of one run."""

    run_id: str
    """The run."""
    attempt: int
    """Its attempt."""
    series: tuple[MetricSeries, ...]
    """One per metric, by name."""


class PowerSeries(View):
    """Power of one device, in order; the lists are equally long."""

    host: str
    """Host."""
    device_uuid: str
    """Device."""
    device_name: str | None
    """Model name."""
    method: str
    """`instant`, `average` or `estimate`."""
    charged: bool
    """Whether the arm used the device."""
    at: tuple[datetime, ...]
    """Start of each bucket, or the sample's instant where nothing was merged."""
    power_mw: tuple[float | None, ...]
    """Mean milliwatts; None where every read failed."""
    least_mw: tuple[float | None, ...]
    """Smallest in the bucket."""
    greatest_mw: tuple[float | None, ...]
    """Largest in the bucket."""
    sample_count: int
    """Samples behind it."""
    bucket_s: float | None
    """Length of a bucket; None where every sample is shown."""


class WindowView(View):
    """One window of one device."""

    phase: str
    """What it was for."""
    number: int
    """Counts the windows of this phase."""
    host: str
    """Host."""
    device_uuid: str
    """Device."""
    charged: bool
    """Whether the arm used the device."""
    started_at: datetime
    """UTC."""
    duration_s: float
    """Seconds."""
    steps: int
    """Optimizer steps inside."""
    samples: int
    """Rows inside."""
    energy_mj: float | None
    """Millijoules; None if unknown."""
    uncertainty_mj: float | None
    """Half-width of the error bound."""
    method: str | None
    """How it was read."""
    scope: str | None
    """What it covers."""
    reason: str | None
    """Why it is unknown."""
    integral_mj: float | None
    """Integral of sampled power over it; None with too few samples."""
    integral_uncertainty_mj: float | None
    """Bound on the integration's error."""
    sample_count: int
    """Power samples inside."""
    largest_gap_s: float | None
    """Longest time between two of them."""
    flags: tuple[str, ...]
    """Flags of the meter, and what samples and board states raised."""


class PowerHistory(View):
    """Power during one run, with the windows that lie in it."""

    run_id: str
    """The run."""
    attempt: int
    """Its attempt."""
    series: tuple[PowerSeries, ...]
    """One per device and method."""
    windows: tuple[WindowView, ...]
    """In order of time."""


class EventView(View):
    """One entry of an experiment's log."""

    key: int
    """Grows along the log; pass it to get what follows."""
    subject_id: str
    """Experiment or run."""
    attempt: int
    """Attempt of it."""
    source: str
    """Who said it; `service` for the service itself."""
    kind: str
    """What it is."""
    at: datetime
    """When it happened."""
    note: str | None
    """Why it changed nothing, if it didn't."""
    payload: dict[str, Any] | None
    """What was said; None for series, which are read through the run."""


class HeartbeatView(View):
    """A dispatcher's last sign of life."""

    owner: str
    """Its name."""
    at: datetime
    """When."""
    age_s: float
    """Seconds ago."""
    state: dict[str, Any]
    """What it knew then."""


class IngestResult(View):
    """What became of a batch of events."""

    accepted: int
    """New ones, now stored."""
    duplicates: int
    """Ones that were stored already, or came twice in the batch."""
    rejected: dict[str, int]
    """Ones that can't be stored, counted by reason; sending them again is of no use."""


class KeyView(View):
    """An API key without its secret."""

    id: str
    """Public part."""
    name: str
    """What it is for."""
    scopes: tuple[str, ...]
    """What it opens."""
    created_at: datetime
    """Made."""
    expires_at: datetime | None
    """Stops working; None never."""
    revoked_at: datetime | None
    """Was made useless; None if it still works."""


class ArmCostView(View):
    """What one arm costs by the formulas; estimates, all of them."""

    arm: str
    """Name."""
    strategy: str
    """How it is split."""
    world_size: int
    """Ranks, p."""
    width: int
    """Neurons per hidden layer, n."""
    control_of: tuple[str, ...]
    """Phantom arms that it was added for."""
    parameters: int
    """Trainable weights over all ranks."""
    flops_per_step: float
    """Over all ranks, forward and backward."""
    bytes_sent_per_step: float
    """Over all ranks."""
    memory_per_rank_bytes: int
    """Largest rank: weights, gradients, optimizer state, activations."""
    energy_per_step_mj: float | None = None
    """Predicted; None until there is a profile of the device."""
    energy_reason: str | None = None
    """Why the energy isn't predicted."""


class ValidationView(View):
    """What a spec would need and cost, without running it."""

    valid: bool
    """Whether it would be accepted."""
    problems: tuple[Problem, ...]
    """What is wrong; empty if valid."""
    warnings: tuple[Problem, ...]
    """What is worth knowing before it runs."""
    baseline: str
    """Arm that the others would be compared with."""
    arms: tuple[ArmCostView, ...]
    """All arms, the added controls among them."""
    rounds: int
    """Passes over all arms."""
    runs: int
    """Arms times rounds."""
    ranks: int
    """Ranks that the worker group needs at once."""
    longest_s: float
    """Most seconds of training over all runs, from the hard limits; set-up and evaluation come on top."""
    deadline_s: float
    """After this the experiment is stopped whatever it does."""
    predicted_energy_mj: float | None
    """None until a profile of the device was measured."""
    predicted_energy_reason: str | None
    """Why it isn't predicted."""


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
    """Passes over all arms that were asked for."""
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
