"""Tables of the service's own: log, comparisons, keys, heartbeats, switches."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, LargeBinary, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from services.columns import Base, Id, Json, Key, one_of
from services.database import UtcDateTime
from services.states import GroupState


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


class QueueTurn(Base):
    """When a caller's experiment was last taken from the queue."""

    __tablename__ = "queue_turns"

    caller: Mapped[str] = mapped_column(String(64), primary_key=True)
    """Id of the API key; empty for those without one."""
    turn: Mapped[int] = mapped_column(BigInteger)
    """Higher is later; not an instant, which goes with a clock that is set."""


class WorkerGroup(Base):
    """A job's ranks, which may make one experiment after another; the row goes when they have ended."""

    __tablename__ = "worker_groups"

    id: Mapped[str] = mapped_column(String(200), primary_key=True)
    """The Ray job's id: that of the first experiment's attempt."""
    token_hash: Mapped[bytes] = mapped_column(LargeBinary(32))
    state: Mapped[str] = mapped_column(String(16))
    experiment_id: Mapped[str | None] = mapped_column(Id)
    """What it makes or is to make; not a foreign key, since a group outlives what it made."""
    attempt: Mapped[int | None]
    """Of that experiment."""
    service_url: Mapped[str] = mapped_column(Text)
    """Where it asks for work."""
    software: Mapped[str] = mapped_column(Text)
    """What it was started with; a newer version's experiments need new processes."""
    world_size: Mapped[int]
    device: Mapped[str] = mapped_column(String(8))
    cpus_per_rank: Mapped[float]
    made_at: Mapped[datetime] = mapped_column(UtcDateTime)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """When it last asked for work."""
    since: Mapped[datetime] = mapped_column(UtcDateTime)
    """When it came into its state."""

    __table_args__ = (one_of("state", GroupState), Index("ix_worker_groups_state", "state"))
