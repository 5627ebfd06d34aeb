"""Tables of what is made of it: runs with their summaries, and every start of each."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from services.columns import Base, Id, Json, Key, one_of
from services.database import UtcDateTime
from services.states import RunState


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
    compiled: Mapped[bool | None]
    exchange: Mapped[str | None] = mapped_column(String(32))
    exchange_reason: Mapped[str | None] = mapped_column(Text)
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
    """All whole windows of this attempt over the arm's boards; None if unknown."""
    energy_interrupted_mj: Mapped[float | None]
    """Where it was cut off: what it used after its last whole window, by sampled power (`interrupted.py`)."""
    energy_reason: Mapped[str | None] = mapped_column(Text)
    """Why one of the two is unknown, or what else must be said of them."""
    finish: Mapped[dict[str, Any] | None]
    """What the job reported at the end of this attempt (`phantom_core.protocol.RunFinished`)."""
