"""Tables of what was asked: experiments, their attempts, tags and arms."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from services.columns import Base, Id, Key, one_of
from services.database import UtcDateTime
from services.states import ExperimentState


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
        Index("ix_experiments_queue", "state", "priority", "submitted_by", "submitted_at", "id"),
        Index("ix_experiments_name", "name"),
    )


class ExperimentAttempt(Base):
    """One start of an experiment's job."""

    __tablename__ = "experiment_attempts"

    experiment_id: Mapped[str] = mapped_column(
        ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True
    )
    attempt: Mapped[int] = mapped_column(primary_key=True)
    begun_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ray_job_id: Mapped[str | None] = mapped_column(String(200))
    warm: Mapped[bool] = mapped_column(default=False)
    """Whether it was given to a worker group that stood ready, instead of a job of its own."""
    leased_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When a dispatcher took the experiment for it."""
    reached_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When its job first asked what to do."""
    reported_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When its worker group reported, by the service's clock at the latest."""
    first_step_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When the set-up of its first run was over."""
    environment: Mapped[dict[str, Any] | None]
    """Backend, ranks and versions, as its worker group reported them."""
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    reason: Mapped[str | None] = mapped_column(String(64))
    """Why another attempt had to be made."""
    message: Mapped[str | None] = mapped_column(Text)


class ExperimentTag(Base):
    """One tag of one experiment, to find it by."""

    __tablename__ = "experiment_tags"

    experiment_id: Mapped[str] = mapped_column(
        ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True
    )
    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    value: Mapped[str] = mapped_column(String(200))

    __table_args__ = (Index("ix_experiment_tags_found", "name", "value"),)


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
