"""Tables of what was measured: devices, windows, metric points, power samples.

Metric points and power samples are stored in blocks, one row for what one event told: docs/decisions/0006 and 0018.
On SQLite the table of metric points is its own index, so a run's history lies in one place.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    ForeignKey,
    Index,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    event,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from phantom_core.board_limits import BoardLimits
from services.columns import Base, Blob, Json, Key
from services.database import UtcDateTime


class Device(Base):
    """A board or processor that an experiment's energy was read from."""

    __tablename__ = "devices"

    key: Mapped[int] = mapped_column(Key, primary_key=True)
    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"))
    host: Mapped[str] = mapped_column(String(255))
    uuid: Mapped[str] = mapped_column(String(255))
    attempt: Mapped[int] = mapped_column(default=0)
    """Experiment's attempt that described it last; 0 while only its windows or samples have come."""
    kind: Mapped[str | None] = mapped_column(String(16))
    name: Mapped[str | None] = mapped_column(String(255), index=True)
    method: Mapped[str | None] = mapped_column(String(32))
    scope: Mapped[str | None] = mapped_column(String(32))
    reason: Mapped[str | None] = mapped_column(Text)
    driver: Mapped[str | None] = mapped_column(String(64))
    power_limit_mw: Mapped[float | None]
    clock_limit_mhz: Mapped[float | None]
    memory_clock_limit_mhz: Mapped[float | None]
    memory_bytes: Mapped[int | None] = mapped_column(BigInteger)

    __table_args__ = (UniqueConstraint("experiment_id", "host", "uuid"),)

    @property
    def limits(self) -> BoardLimits:
        """The limits that it was under when it was described."""
        return BoardLimits(self.power_limit_mw, self.clock_limit_mhz, self.memory_clock_limit_mhz)


class Window(Base):
    """What one device did between two barriers, as one source told it."""

    __tablename__ = "windows"

    key: Mapped[int] = mapped_column(Key, primary_key=True)
    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"))
    run_key: Mapped[int | None] = mapped_column(ForeignKey("runs.key", ondelete="CASCADE"))
    """None for windows of the experiment, such as its idle baseline."""
    device_key: Mapped[int] = mapped_column(ForeignKey("devices.key", ondelete="CASCADE"))
    attempt: Mapped[int]
    """Attempt of the run, or of the experiment."""
    experiment_attempt: Mapped[int]
    """Attempt of the experiment that it happened in; so is that of the samples beside it."""
    source: Mapped[str] = mapped_column(String(64))
    seq: Mapped[int] = mapped_column(BigInteger)
    phase: Mapped[str] = mapped_column(String(16))
    number: Mapped[int]
    """Counts the windows of this phase in this run."""
    charged: Mapped[bool]
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    started_monotonic_s: Mapped[float]
    duration_s: Mapped[float]
    steps: Mapped[int] = mapped_column(BigInteger)
    samples: Mapped[int] = mapped_column(BigInteger)
    energy_mj: Mapped[float | None]
    uncertainty_mj: Mapped[float | None]
    method: Mapped[str | None] = mapped_column(String(32))
    scope: Mapped[str | None] = mapped_column(String(32))
    reason: Mapped[str | None] = mapped_column(Text)
    flags: Mapped[list[str] | None]
    integral_mj: Mapped[float | None]
    """Integral of sampled power over the window; None while there are too few samples."""
    integral_uncertainty_mj: Mapped[float | None]
    sample_count: Mapped[int] = mapped_column(default=0)
    largest_gap_s: Mapped[float | None]
    seen_flags: Mapped[list[str] | None]
    """What samples and board states in the window raise."""

    __table_args__ = (
        Index("ix_windows_run", "run_key", "attempt"),
        Index("ix_windows_experiment", "experiment_id", "phase"),
        Index("ix_windows_device", "device_key", "started_monotonic_s"),
    )


class MetricBlock(Base):
    """The metric points of one event."""

    __tablename__ = "metric_blocks"

    run_key: Mapped[int] = mapped_column(ForeignKey("runs.key", ondelete="CASCADE"), primary_key=True)
    attempt: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    source: Mapped[str] = mapped_column(String(64), primary_key=True)
    """With `seq`, the event that brought them."""
    first_step: Mapped[int] = mapped_column(BigInteger)
    """The smallest of their steps."""
    point_count: Mapped[int]
    points: Mapped[bytes] = mapped_column(Blob)
    """All of them, packed by `metric_packing.py`."""

    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012 - read by SQLAlchemy


class PowerSample(Base):
    """A block of power readings of one device.

    As it comes it is no longer than `power_blocks.LONGEST_BLOCK_S`; `power_joining.py` makes ones of up to
    `power_rows.LONGEST_JOINED_S` of them.
    """

    __tablename__ = "power_samples"

    key: Mapped[int] = mapped_column(Key, primary_key=True)
    device_key: Mapped[int] = mapped_column(ForeignKey("devices.key", ondelete="CASCADE"))
    experiment_attempt: Mapped[int]
    method: Mapped[str] = mapped_column(String(16))
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime] = mapped_column(UtcDateTime)
    started_monotonic_s: Mapped[float]
    ended_monotonic_s: Mapped[float]
    sample_count: Mapped[int]
    missing_count: Mapped[int]
    """Reads that failed."""
    least_mw: Mapped[float | None]
    mean_mw: Mapped[float | None]
    greatest_mw: Mapped[float | None]
    outline: Mapped[bytes | None] = mapped_column(Blob)
    """Figures of its parts, packed by `power_parts.py`; None in a block as it came. SQLite finds what stands before
    the readings without walking through them."""
    parts: Mapped[bytes | None] = mapped_column(Blob)
    """The same of smaller parts."""
    readings: Mapped[bytes] = mapped_column(Blob)
    """All of them, packed by `power_blocks.py`."""

    __table_args__ = (
        Index("ix_power_samples_series", "device_key", "experiment_attempt", "started_monotonic_s"),
        Index(
            "ix_power_samples_unjoined",
            "device_key",
            "experiment_attempt",
            "started_monotonic_s",
        ),
    )


@event.listens_for(PowerSample.__table__, "before_create")
def _index_the_unjoined_alone(table: Table, connection: Connection, **_: Any) -> None:
    # Named at the index itself, an option of one database would load that database's dialect at every start.
    (index,) = (each for each in table.indexes if each.name == "ix_power_samples_unjoined")
    index.dialect_options[connection.dialect.name]["where"] = text("parts IS NULL")


class BoardStateBlock(Base):
    """Consecutive states of one device: clocks, temperature, throttling, processes; about one a second."""

    __tablename__ = "board_states"

    key: Mapped[int] = mapped_column(Key, primary_key=True)
    device_key: Mapped[int] = mapped_column(ForeignKey("devices.key", ondelete="CASCADE"))
    experiment_attempt: Mapped[int]
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    started_monotonic_s: Mapped[float]
    ended_monotonic_s: Mapped[float]
    states: Mapped[list[Any]] = mapped_column(Json)
    """Each as `phantom_core.protocol.BoardState`."""

    __table_args__ = (
        Index("ix_board_states_series", "device_key", "experiment_attempt", "started_monotonic_s"),
    )
