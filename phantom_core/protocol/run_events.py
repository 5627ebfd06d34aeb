"""What a job tells of one run: its start, its windows, its end."""

from typing import Literal

from pydantic import AwareDatetime

from phantom_core.protocol.words import Exchange, Method, Phase, Reason, RunOutcome, Scope, StepMode, Wire


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
    """What carried most of a step's exchanges; `symmetric_memory` is the fused exchange."""
    exchange_reason: str | None = None
    """What went otherwise, and why not all by the fused exchange, or why nothing was sent; None: nothing to say."""
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
