"""Tables: what was asked, and what became of it. Measured rows are in `measured_tables.py`.

Runs and devices have a short counted key beside their id, since millions of measured rows repeat it.
A float that isn't finite is stored as NULL with its name (`nan`, `inf`, `-inf`) beside it.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, LargeBinary, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from services.columns import Base, Id, Json, Key, one_of
from services.database import UtcDateTime
from services.measured_tables import BoardStateBlock, Device, Metric, PowerSample, Window
from services.states import ExperimentState, RunState

__all__ = [
    "ApiKey",
    "Arm",
    "Attempt",
    "Base",
    "BoardStateBlock",
    "Comparison",
    "Device",
    "Event",
    "Experiment",
    "ExperimentAttempt",
    "ExperimentTag",
    "Heartbeat",
    "IdempotencyKey",
    "Metric",
    "PowerSample",
    "Run",
    "Switch",
    "Window",
]


class Experiment(Base):
    """One accepted spec and its state."""

    __tablename__ = "experiments"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(String(80))
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(String(64))
    message: Mapped[str | None] = mapped_column(Text)
    description: Mapped[str] = mapped_column(Text)
    tags: Mapped[dict[str, Any]]
    rounds: Mapped[int]
    sample_rate_hz: Mapped[float]
    # Long, and rarely looked at: read only where they are asked for.
    spec: Mapped[dict[str, Any]] = mapped_column(deferred=True)
    plan: Mapped[dict[str, Any]] = mapped_column(deferred=True)
    baseline: Mapped[str] = mapped_column(String(80))
    priority: Mapped[int] = mapped_column(default=0)
    submitted_by: Mapped[str | None] = mapped_column(String(64))
    version: Mapped[int] = mapped_column(BigInteger, default=0)
    """Raised by every change; also the `seq` of the service's own events."""

    cancel_requested_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    delete_requested_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    lease_owner: Mapped[str | None] = mapped_column(String(200))
    lease_token: Mapped[str | None] = mapped_column(String(64))
    lease_expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    eligible_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """A queued experiment that was given back is not leased again before this."""

    attempt: Mapped[int] = mapped_column(default=0)
    ray_job_id: Mapped[str | None] = mapped_column(String(200))
    ray_dashboard_url: Mapped[str | None] = mapped_column(Text)
    environment: Mapped[dict[str, Any] | None]
    """Backend, ranks and versions, as the worker group reported them."""
    reported_outcome: Mapped[str | None] = mapped_column(String(16))
    """What the job said of its own end; the experiment ends once its runs have."""
    reported_reason: Mapped[str | None] = mapped_column(String(64))
    reported_message: Mapped[str | None] = mapped_column(Text)

    submitted_at: Mapped[datetime] = mapped_column(UtcDateTime)
    leased_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    starting_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    running_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    first_run_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    last_event_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    progress: Mapped[str | None] = mapped_column(Text)
    progress_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    comparison: Mapped[dict[str, Any] | None] = mapped_column(deferred=True)
    """The whole answer as it stood when the experiment ended (`services.views.ComparisonView`)."""
    compared_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When that was computed; None while it wasn't, or is out of date."""

    __table_args__ = (
        one_of("state", ExperimentState),
        Index("ix_experiments_queue", "state", "priority", "id"),
        Index("ix_experiments_name", "name"),
    )


class ExperimentTag(Base):
    """One tag of one experiment, to find it by."""

    __tablename__ = "experiment_tags"

    experiment_id: Mapped[str] = mapped_column(
        ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True
    )
    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    value: Mapped[str] = mapped_column(String(200))

    __table_args__ = (Index("ix_experiment_tags_found", "name", "value"),)


class ExperimentAttempt(Base):
    """One start of an experiment's job."""

    __tablename__ = "experiment_attempts"

    experiment_id: Mapped[str] = mapped_column(
        ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True
    )
    attempt: Mapped[int] = mapped_column(primary_key=True)
    begun_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ray_job_id: Mapped[str | None] = mapped_column(String(200))
    environment: Mapped[dict[str, Any] | None]
    """Backend, ranks and versions, as its worker group reported them."""
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    reason: Mapped[str | None] = mapped_column(String(64))
    """Why another attempt had to be made."""
    message: Mapped[str | None] = mapped_column(Text)


class Arm(Base):
    """One way to do it, resolved, with what it costs by the formulas."""

    __tablename__ = "arms"

    key: Mapped[int] = mapped_column(Key, primary_key=True)
    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(120))
    position: Mapped[int]
    strategy: Mapped[str] = mapped_column(String(32))
    world_size: Mapped[int]
    width: Mapped[int]
    depth: Mapped[int]
    ghosts: Mapped[int | None]
    dtype: Mapped[str] = mapped_column(String(16))
    settings: Mapped[dict[str, Any]]
    """The planned arm, whole."""
    control_of: Mapped[list[str]]
    cost: Mapped[dict[str, Any] | None]
    """What `validate` said it would cost."""

    __table_args__ = (
        UniqueConstraint("experiment_id", "name"),
        Index("ix_arms_shape", "strategy", "width", "world_size"),
    )


class Run(Base):
    """One arm in one round, and its summary once it has ended."""

    __tablename__ = "runs"

    key: Mapped[int] = mapped_column(Key, primary_key=True)
    id: Mapped[str] = mapped_column(Id, unique=True)
    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"))
    arm_key: Mapped[int] = mapped_column(ForeignKey("arms.key", ondelete="CASCADE"), index=True)
    round: Mapped[int]
    position: Mapped[int]
    seed: Mapped[int] = mapped_column(BigInteger)
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(String(64))
    message: Mapped[str | None] = mapped_column(Text)
    attempt: Mapped[int] = mapped_column(default=0)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    steps: Mapped[int | None] = mapped_column(BigInteger)
    samples: Mapped[int | None] = mapped_column(BigInteger)
    training_s: Mapped[float | None]
    energy_training_mj: Mapped[float | None]
    energy_training_uncertainty_mj: Mapped[float | None]
    energy_setup_mj: Mapped[float | None]
    energy_evaluation_mj: Mapped[float | None]
    energy_idle_boards_mj: Mapped[float | None]
    """Energy of boards that the experiment held but the arm left idle; not charged to it."""
    steady_s: Mapped[float | None]
    steady_steps: Mapped[int | None] = mapped_column(BigInteger)
    energy_steady_mj: Mapped[float | None]
    per_step_phase: Mapped[str | None] = mapped_column(String(16))
    """Which windows the figures per step come from: `steady` where there is one, else `training`."""
    energy_per_step_mj: Mapped[float | None]
    energy_per_step_uncertainty_mj: Mapped[float | None]
    energy_per_sample_mj: Mapped[float | None]
    seconds_per_step: Mapped[float | None]
    target_step: Mapped[int | None] = mapped_column(BigInteger)
    energy_to_target_mj: Mapped[float | None]
    seconds_to_target: Mapped[float | None]
    final_train_loss: Mapped[float | None]
    final_evaluation_loss: Mapped[float | None]
    non_finite: Mapped[dict[str, Any] | None]
    """Names of the summary's values that aren't finite, each with `nan`, `inf` or `-inf`."""
    idle_power_mw: Mapped[float | None]
    energy_net_mj: Mapped[float | None]
    energy_integral_mj: Mapped[float | None]
    """Integral of sampled power over the same windows as `energy_training_mj`."""
    sample_count: Mapped[int | None]
    largest_gap_s: Mapped[float | None]
    method: Mapped[str | None] = mapped_column(String(32))
    scope: Mapped[str | None] = mapped_column(String(32))
    energy_reason: Mapped[str | None] = mapped_column(Text)
    """Why an energy is unknown, or what else must be said beside it."""
    flags: Mapped[list[str] | None]
    device_keys: Mapped[list[Any] | None] = mapped_column(Json)
    """Boards that the run used."""
    step_mode: Mapped[str | None] = mapped_column(String(16))
    step_mode_reason: Mapped[str | None] = mapped_column(Text)
    parameters: Mapped[int | None] = mapped_column(BigInteger)
    peak_memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    flops_per_step: Mapped[float | None]
    bytes_sent_per_step: Mapped[float | None]

    __table_args__ = (
        one_of("state", RunState),
        UniqueConstraint("experiment_id", "round", "position"),
        Index("ix_runs_state", "experiment_id", "state"),
    )


class Attempt(Base):
    """One start of a run, and the energy that it spent, whatever came of it."""

    __tablename__ = "attempts"

    run_key: Mapped[int] = mapped_column(ForeignKey("runs.key", ondelete="CASCADE"), primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    experiment_attempt: Mapped[int]
    assigned_at: Mapped[datetime] = mapped_column(UtcDateTime)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    outcome: Mapped[str | None] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(String(64))
    message: Mapped[str | None] = mapped_column(Text)
    energy_mj: Mapped[float | None]
    """All windows of this attempt over the arm's boards; None if unknown."""
    finish: Mapped[dict[str, Any] | None]
    """What the job reported at the end of this attempt (`phantom_core.protocol.RunFinished`)."""


class Event(Base):
    """One thing that happened, kept once; the log that watchers follow."""

    __tablename__ = "events"

    key: Mapped[int] = mapped_column(Key, primary_key=True)
    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"))
    subject_id: Mapped[str] = mapped_column(Id)
    attempt: Mapped[int]
    source: Mapped[str] = mapped_column(String(64))
    seq: Mapped[int] = mapped_column(BigInteger)
    kind: Mapped[str] = mapped_column(String(32))
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    received_at: Mapped[datetime] = mapped_column(UtcDateTime)
    note: Mapped[str | None] = mapped_column(Text)
    """Why it changed nothing, if it didn't."""
    payload: Mapped[dict[str, Any] | None]
    """What was said; None for metrics, power samples and windows, whose rows hold it."""

    __table_args__ = (
        UniqueConstraint("subject_id", "attempt", "source", "seq"),
        Index("ix_events_log", "experiment_id", "key"),
    )


class Comparison(Base):
    """One arm against the baseline in one metric, to find across experiments; see `Experiment.comparison`."""

    __tablename__ = "comparisons"

    experiment_id: Mapped[str] = mapped_column(
        ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True
    )
    arm_key: Mapped[int] = mapped_column(
        ForeignKey("arms.key", ondelete="CASCADE"), primary_key=True, index=True
    )
    metric: Mapped[str] = mapped_column(String(64), primary_key=True)
    is_primary: Mapped[bool]
    verdict: Mapped[str] = mapped_column(String(32))
    ratio: Mapped[float | None]
    ratio_low: Mapped[float | None]
    ratio_high: Mapped[float | None]
    pairs: Mapped[int]
    estimated: Mapped[bool]
    loss_differs: Mapped[bool]
    flags: Mapped[list[str]]
    sentence: Mapped[str] = mapped_column(Text)

    __table_args__ = (Index("ix_comparisons_found", "metric", "ratio"),)


class ApiKey(Base):
    """A door key; only a hash of it is kept."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    """Public first part of the key."""
    name: Mapped[str] = mapped_column(String(200))
    secret_hash: Mapped[bytes] = mapped_column(LargeBinary(32))
    scopes: Mapped[list[str]]
    experiment_id: Mapped[str | None] = mapped_column(
        ForeignKey("experiments.id", ondelete="CASCADE"), index=True
    )
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class IdempotencyKey(Base):
    """A submission that a caller may repeat; outlives the experiment, so that a repeat can't make another."""

    __tablename__ = "idempotency_keys"

    caller: Mapped[str] = mapped_column(String(64), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    payload_sha256: Mapped[bytes] = mapped_column(LargeBinary(32))
    experiment_id: Mapped[str] = mapped_column(Id)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Heartbeat(Base):
    """When a part of the service was last seen alive."""

    __tablename__ = "heartbeats"

    owner: Mapped[str] = mapped_column(String(200), primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    state: Mapped[dict[str, Any]] = mapped_column(Json, server_default=text("'{}'"))


class Switch(Base):
    """A setting that all service processes share, such as the pause of the queue."""

    __tablename__ = "switches"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[dict[str, Any]]
    set_at: Mapped[datetime] = mapped_column(UtcDateTime)
