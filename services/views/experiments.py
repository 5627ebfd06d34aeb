"""Experiments as they are shown: state, arms, timings, attempts."""

from datetime import datetime
from typing import Any

from services.views.base import View
from services.views.comparisons import VerdictView
from services.views.devices import DeviceView


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
    """Number format; `tf32` is float32 whose matrix products may use TF32."""
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


class PhaseView(View):
    """What an experiment is doing right now, so that nobody waits for a silent `running`."""

    name: str
    """`queued`, `cluster`, `start_up`, `set_up`, `runs` or `ended`; `timings` has all but the last, of all attempts."""
    since: datetime
    """When that began."""
    elapsed_s: float | None
    """Seconds since then; None once it has ended."""


class TimingsView(View):
    """Where the time of an experiment went, in seconds summed over its attempts; None for what has not begun."""

    queued_s: float | None
    """From submission until a dispatcher took it, and each time again that it was given back or had to be made anew."""
    cluster_s: float | None
    """From there until its job, or the worker group that stood ready, asked what to do."""
    start_up_s: float | None
    """From there until the worker group reported: processes, imports, process groups, data."""
    set_up_s: float | None
    """From there until the first step: the idle baseline, if one was asked for, then model and warm-up."""
    running_s: float | None
    """From each attempt's first step until its end, or until now."""
    total_s: float
    """From submission until the end, or until now."""


class JobAttemptView(View):
    """One start of an experiment's job."""

    attempt: int
    """From 1."""
    ray_job_id: str | None
    """The job in Ray; None if it was never submitted."""
    warm: bool
    """Whether it was given to a worker group that stood ready; the job is that group's then."""
    queued_s: float | None
    """Seconds from submission, or from the end of the attempt before, until a dispatcher took it."""
    cluster_s: float | None
    """Seconds from there until its job asked what to do."""
    start_up_s: float | None
    """Seconds from there until the worker group reported."""
    set_up_s: float | None
    """Seconds from there until the first step, with the idle baseline if one was asked for."""
    timings_reason: str | None
    """Why the last of these are None; None where all are known."""
    begun_at: datetime
    """Made ready to submit."""
    ended_at: datetime | None
    """Ended, or given up."""
    reason: str | None
    """Why another attempt had to be made; None for the last."""
    message: str | None
    """The same for a person."""


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
    """`resources.priority` of its spec: higher goes first."""
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
    phase: PhaseView
    """What it is doing right now."""
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
