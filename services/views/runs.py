"""Runs as they are shown."""

from datetime import datetime

from services.views.base import View


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
    """All its whole windows over the arm's boards, millijoules; None if unknown."""
    energy_interrupted_mj: float | None
    """Where it was cut off: what it used after its last whole window, millijoules, estimated from sampled power;
    None if it was not cut off, or unknown."""
    energy_reason: str | None
    """Why one of the two is unknown, or what else must be said of them."""


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
    """`queued`, `running`, `succeeded`, `diverged`, `failed`, `cancelled` or `skipped`."""
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
    """Idle power of the arm's boards together, by the mean of before the first round and after the last."""
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
    compiled: bool | None
    """Whether torch.compile compiled the hidden layers."""
    exchange: str | None
    """What carried most of a step's exchanges: `symmetric_memory` (fused), `nccl` or `gloo`."""
    exchange_reason: str | None
    """What went otherwise, and why not all by the fused exchange, or why nothing was sent; None: nothing to say."""
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
