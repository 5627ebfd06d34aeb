"""What job and service say to each other: an assignment one way, events the other. Torch-free.

Every event carries `(subject_id, attempt, source, seq)`; the service stores each once, however often
it is sent. Times are UTC. Floats may be NaN or infinite and travel as the strings `NaN`, `Infinity`
and `-Infinity`, since JSON has no numbers for them.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter

from phantom_core.described import describe
from phantom_core.plan import Plan


class Wire(BaseModel):
    """Frozen; unknown fields refused; non-finite floats kept."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, ser_json_inf_nan="strings", json_schema_extra=describe
    )


class JobVariable(StrEnum):
    """What the service tells a job through its environment."""

    SERVICE_URL = "GHOSTWATT_SERVICE_URL"
    """Whom to report to."""
    EXPERIMENT_ID = "GHOSTWATT_EXPERIMENT_ID"
    """The experiment that the job was started for."""
    INGEST_TOKEN = "GHOSTWATT_INGEST_TOKEN"  # noqa: S105 (the variable's name, not a token)
    """Good for that experiment's attempt only."""
    GROUP_ID = "GHOSTWATT_GROUP_ID"
    """The worker group, named as the job."""
    GROUP_TOKEN = "GHOSTWATT_GROUP_TOKEN"  # noqa: S105
    """Good only for asking what the group does next, and for saying that it has ended."""


JOB_LOG_LINE = "ghostwatt: making "
"""With an experiment's id, the line of a job's log from which on the log is that experiment's."""


class Reason(StrEnum):
    """Why a run or an experiment ended as it did, or a number is missing."""

    NON_FINITE_LOSS = "non_finite_loss"
    OUT_OF_MEMORY = "out_of_memory"
    ARM_ERROR = "arm_error"
    TASK_ERROR = "task_error"
    CANCELLED_BY_USER = "cancelled_by_user"
    WORKER_LOST = "worker_lost"
    GROUP_LOST = "group_lost"
    JOB_FAILED = "job_failed"
    JOB_STOPPED = "job_stopped"
    JOB_UNKNOWN = "job_unknown"
    SUBMIT_FAILED = "submit_failed"
    NO_CAPACITY = "no_capacity"
    SCHEDULING_DEADLINE = "scheduling_deadline"
    SILENCE_DEADLINE = "silence_deadline"
    DEADLINE = "deadline"
    ALL_RUNS_FAILED = "all_runs_failed"
    ENERGY_UNKNOWN = "energy_unknown"
    PRECISION_REACHED = "precision_reached"
    NOTHING_TO_COMPARE = "nothing_to_compare"


Phase = Literal["idle_before", "setup", "training", "evaluation", "steady", "waiting", "idle_after"]
Method = Literal["nvml.counter", "nvml.power", "rapl", "estimate", "amdsmi.counter"]
Scope = Literal["gpu", "module", "package", "package+dram", "process"]
StepMode = Literal["eager", "graph"]
Exchange = Literal["symmetric_memory", "nccl", "gloo"]
RunOutcome = Literal["succeeded", "diverged", "failed", "cancelled"]


class AssignedRun(Wire):
    """One run that the job is to make."""

    run_id: str
    """The service's id."""
    attempt: int
    """Number of this start, from 1."""
    round: int
    """From 0."""
    position: int
    """Place in the round."""
    arm: str
    """Name of the arm in the plan."""
    seed: int
    """Seed of weights and batches."""


class MadeRun(Wire):
    """One run that an earlier start of the job has made."""

    round: int
    """From 0."""
    arm: str
    """Name of the arm in the plan."""
    figure: float | None
    """What the comparison rests on: millijoules per step, or to the target loss; None if there is no sound one."""


class Assignment(Wire):
    """All that a job needs to know; `GET /internal/v1/experiments/{id}/assignment`."""

    experiment_id: str
    """The service's id."""
    attempt: int
    """Number of this start of the job, from 1."""
    plan: Plan
    """The arms, resolved."""
    runs: tuple[AssignedRun, ...]
    """What is still to be made, in order."""
    made: tuple[MadeRun, ...] = ()
    """What was made before, for deciding how many rounds are needed."""
    data_roots: tuple[str, ...] = ()
    """Folders under which a `file` task's path may lie."""


class DeviceInfo(Wire):
    """A board or processor that energy is read from."""

    host: str
    """Host name."""
    uuid: str
    """NVML's UUID for GPUs; a name unique on the host for everything else."""
    kind: Literal["cuda", "rocm", "cpu"]
    """What it is."""
    name: str
    """Model name, such as `NVIDIA H200`."""
    method: Method | None
    """How its energy is read; None if it can't be."""
    scope: Scope | None
    """What the reading covers."""
    reason: str | None = None
    """Why it can't be read, or what the method leaves out."""
    driver: str | None = None
    """Driver version."""
    power_limit_mw: float | None = None
    """Enforced power limit."""
    clock_limit_mhz: float | None = None
    """Limit on the clock of the multiprocessors, MHz, as far as the driver tells one."""
    memory_clock_limit_mhz: float | None = None
    """Limit on the clock of the memory, MHz."""
    memory_bytes: int | None = None
    """Memory of the device."""


class RankInfo(Wire):
    """Where a rank of the worker group runs."""

    rank: int
    """From 0."""
    host: str
    """Host name."""
    device_uuid: str
    """Its device."""
    process_id: int | None = None
    """Its process as the host's driver numbers it; None where that can't be told (in a container)."""


class ExperimentStarted(Wire):
    """The worker group reported: the experiment is running."""

    kind: Literal["experiment_started"] = "experiment_started"
    backend: Literal["nccl", "gloo"]
    """Process-group backend."""
    ranks: tuple[RankInfo, ...]
    """Every rank."""
    devices: tuple[DeviceInfo, ...]
    """Every distinct device."""
    versions: dict[str, str]
    """Python, torch, ray, CUDA, NCCL, ghostwatt."""
    data_digest: str | None = None
    """Tells the task's rows from others; None from a job that doesn't say."""


class RunStarted(Wire):
    """All ranks of the arm began set-up."""

    kind: Literal["run_started"] = "run_started"
    ranks: int
    """Ranks of the arm."""


class Window(Wire):
    """What one device did between two barriers."""

    kind: Literal["window"] = "window"
    phase: Phase
    """What the window was for."""
    index: int
    """Counts the windows of this phase in this run, from 0."""
    host: str
    """Host of the device."""
    device_uuid: str
    """The device."""
    charged: bool
    """Whether the arm used the device; a device that the arm leaves idle is recorded but not charged."""
    started_at: AwareDatetime
    """UTC."""
    started_monotonic_s: float
    """The host's monotonic clock, which power samples carry too."""
    duration_s: float
    """Seconds, by the monotonic clock."""
    steps: int = 0
    """Optimizer steps inside."""
    samples: int = 0
    """Rows trained on or evaluated."""
    energy_mj: float | None
    """Millijoules of the device; None if unknown."""
    uncertainty_mj: float | None = None
    """Half-width of the reading's error bound; None if unknown."""
    method: Method | None
    """How `energy_mj` was read."""
    scope: Scope | None
    """What it covers."""
    reason: str | None = None
    """Why `energy_mj` is None, or what else must be said."""
    flags: tuple[str, ...] = ()
    """Flags raised by the meter, such as `counter_reset`."""


class MetricPoint(Wire):
    """One value of one metric."""

    step: int
    """Optimizer steps done."""
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
    """What was measured, units in the name."""
    value: float
    """May be NaN or infinite."""
    energy_mj: float | None = None
    """Gross energy of the run's training windows so far, over the arm's boards; None if unknown."""
    training_s: float | None = None
    """Seconds of the run's training windows so far."""


class Metrics(Wire):
    """Values from one run, in order."""

    kind: Literal["metrics"] = "metrics"
    points: tuple[MetricPoint, ...]
    """The values."""


class PowerSamples(Wire):
    """Consecutive power readings of one device; the four lists are equally long."""

    kind: Literal["power_samples"] = "power_samples"
    host: str
    """Host of the device."""
    device_uuid: str
    """The device."""
    method: Literal["instant", "average", "estimate"]
    """Which power: momentary, averaged by the driver, or estimated."""
    at: tuple[AwareDatetime, ...]
    """UTC."""
    monotonic_s: tuple[float, ...]
    """The host's monotonic clock."""
    power_mw: tuple[float | None, ...]
    """Milliwatts; None if a read failed."""
    utilization_percent: tuple[float | None, ...] = ()
    """GPU utilisation at the same instants; empty if not read."""


class BoardState(Wire):
    """What a device was doing at one moment, beside its power."""

    at: AwareDatetime
    """UTC."""
    monotonic_s: float
    """The host's monotonic clock."""
    sm_clock_mhz: float | None = None
    """Clock of the multiprocessors, MHz; None if it can't be read."""
    memory_clock_mhz: float | None = None
    """Clock of the memory, MHz."""
    temperature_c: float | None = None
    """Temperature of the chip, degrees Celsius."""
    utilization_percent: float | None = None
    """Share of the driver's last sample period in which a kernel ran."""
    power_limit_mw: float | None = None
    """Enforced power limit."""
    clock_limit_mhz: float | None = None
    """Limit on the clock of the multiprocessors, MHz, as far as the driver tells one."""
    memory_clock_limit_mhz: float | None = None
    """Limit on the clock of the memory, MHz."""
    throttle_reasons: tuple[str, ...] | None = None
    """Why clocks are held down, such as `sw_power_cap`; empty if they are not, None if it can't be read."""
    process_ids: tuple[int, ...] | None = None
    """Processes that compute on the device, as the driver numbers them; None if it can't be read."""
    reasons: tuple[str, ...] = ()
    """Why something of the above is None."""


class BoardStates(Wire):
    """Consecutive states of one device, about one a second."""

    kind: Literal["board_states"] = "board_states"
    host: str
    """Host of the device."""
    device_uuid: str
    """The device."""
    states: tuple[BoardState, ...]
    """In order."""


class SamplerEnded(Wire):
    """The node's sampler stopped."""

    kind: Literal["sampler_ended"] = "sampler_ended"
    host: str
    """Host name."""
    samples: int
    """Readings taken."""
    largest_gap_s: float
    """Longest pause between two readings."""
    reason: str | None = None
    """Why it stopped early; None if it was asked to."""


class Carried(Wire):
    """Training windows of an earlier attempt that a run which went on from there counts as its own."""

    attempt: int
    """Number of the run's attempt that made them."""
    windows: int
    """Those numbered below this; of the entry before, if there is one, not those below its."""
    steps: int
    """Optimizer steps done at their end."""


class RunFinished(Wire):
    """How a run ended, with what only the ranks know; energy is summed from the windows."""

    kind: Literal["run_finished"] = "run_finished"
    outcome: RunOutcome
    """The run's final state."""
    reason: Reason | None = None
    """Why, unless it succeeded."""
    message: str | None = None
    """One sentence for a person."""
    steps: int
    """Optimizer steps of the training windows."""
    samples: int
    """Rows trained on."""
    training_s: float | None = None
    """Seconds of the training windows."""
    final_train_loss: float | None = None
    """Mean over the last interval; may be NaN."""
    final_evaluation_loss: float | None = None
    """Loss on the evaluation rows at the end; may be NaN."""
    target_step: int | None = None
    """Step at which the target loss was reached; None if it was not, or there was none."""
    energy_to_target_mj: float | None = None
    """Gross energy of training up to that step over the arm's boards; None if unknown or not reached."""
    seconds_to_target: float | None = None
    """Training seconds up to that step."""
    step_mode: StepMode | None = None
    """Whether steps ran in a CUDA graph."""
    step_mode_reason: str | None = None
    """Why not in a graph."""
    compiled: bool | None = None
    """Whether torch.compile compiled the hidden layers; None if no model was built."""
    exchange: Exchange | None = None
    """What carried the hidden layers' exchanges; `symmetric_memory` is the fused exchange of ghosts."""
    exchange_reason: str | None = None
    """Why ghosts did not travel by the fused exchange, or why nothing was sent."""
    parameters: int | None = None
    """Trainable weights over all ranks, counted on the built model."""
    peak_memory_bytes: int | None = None
    """Largest over the ranks; None where the device can't tell."""
    flops_per_step: float | None = None
    """Over all ranks, from the formulas."""
    bytes_sent_per_step: float | None = None
    """Over all ranks, counted by the collectives."""
    carried: tuple[Carried, ...] = ()
    """What of steps, time and energy comes from earlier attempts, the earliest first; empty for a run made whole."""


class RunSkipped(Wire):
    """A planned run is not made, since the comparison needs no more rounds."""

    kind: Literal["run_skipped"] = "run_skipped"
    reason: Reason
    """`precision_reached`, or `nothing_to_compare`."""
    message: str
    """One sentence for a person."""


class ExperimentFinished(Wire):
    """The job made all its runs, or can't go on."""

    kind: Literal["experiment_finished"] = "experiment_finished"
    outcome: Literal["succeeded", "failed", "cancelled"]
    """Final state that the job asks for."""
    reason: Reason | None = None
    """Why, unless it succeeded."""
    message: str | None = None
    """One sentence for a person."""


class Progress(Wire):
    """A sign of life and what is being done."""

    kind: Literal["progress"] = "progress"
    message: str
    """One line."""
    done: int
    """Runs ended."""
    total: int
    """Runs assigned."""


class Alive(Wire):
    """All ranks have lately been heard; said by one of them while nothing else may be said for long."""

    kind: Literal["alive"] = "alive"
    ranks: int
    """How many they are."""


Payload = Annotated[
    ExperimentStarted
    | RunStarted
    | Window
    | Metrics
    | PowerSamples
    | BoardStates
    | SamplerEnded
    | RunFinished
    | RunSkipped
    | ExperimentFinished
    | Progress
    | Alive,
    Field(discriminator="kind"),
]


SAMPLER_SOURCE = "sampler-"
"""How a sampler's name begins as the source of an event: of a process that may outlive the ranks."""


class Event(Wire):
    """One thing that happened, told once."""

    subject_id: Annotated[str, Field(max_length=64)]
    """Id of the run it belongs to, else of the experiment."""
    attempt: Annotated[int, Field(ge=1)]
    """Attempt of the run, or of the experiment."""
    source: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]
    """Who says it: `rank-0`, `pulse`, `sampler-<host>`, `end`."""
    seq: Annotated[int, Field(ge=0)]
    """Counts the source's events of this job, from 0."""
    at: AwareDatetime
    """When it happened, UTC."""
    payload: Payload
    """What happened."""


class EventBatch(Wire):
    """Body of `POST /internal/v1/events`."""

    experiment_id: str
    """The experiment that all of them belong to."""
    events: tuple[Event, ...] = Field(max_length=1_000)
    """In order of `seq` per source."""


class NextRequest(Wire):
    """Body of `POST /internal/v1/next`: a worker group is done and asks what to do."""

    group_id: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,120}$")]
    """The group."""
    finished: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,64}$")]
    """The experiment that it made last; tells a lost answer from a new question."""
    device: Literal["cuda", "cpu"]
    """Where its ranks run."""


class NextAnswer(Wire):
    """What a worker group is to do."""

    action: Literal["wait", "begin", "end"]
    """Ask again in a moment, make the experiment below, or end."""
    experiment_id: str | None = None
    """What to make, with `begin`."""
    token: str | None = Field(None, repr=False)
    """That experiment's own ingest token."""


class GroupEnded(Wire):
    """Body of `POST /internal/v1/group-ended`: the job's driver saw its worker group end."""

    group_id: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,120}$")]
    """The group."""
    outcome: Literal["succeeded", "failed", "cancelled"]
    """How, and with that how the experiment that it was making ends."""
    reason: Reason | None = None
    """Why, unless it was told to end."""
    message: Annotated[str, Field(max_length=4_000)] | None = None
    """One sentence for a person."""


EVENT_ADAPTER: TypeAdapter[Event] = TypeAdapter(Event)
"""Parses one event from JSON."""
