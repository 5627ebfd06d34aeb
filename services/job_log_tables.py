"""Tables of what jobs printed."""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, ForeignKeyConstraint
from sqlalchemy.orm import Mapped, mapped_column

from services.columns import Base, Blob, Id
from services.database import UtcDateTime


class JobLog(Base):
    """How far the log of one start of an experiment's job has been copied."""

    __tablename__ = "job_logs"

    experiment_id: Mapped[str] = mapped_column(
        ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True
    )
    attempt: Mapped[int] = mapped_column(primary_key=True)
    read_bytes: Mapped[int] = mapped_column("read_characters", BigInteger)
    """Bytes of Ray's log that have been looked at, or left out."""
    first_byte: Mapped[int] = mapped_column(BigInteger)
    """Position of the first byte that is still kept."""
    end_byte: Mapped[int] = mapped_column(BigInteger)
    """Position behind the last byte."""
    is_complete: Mapped[bool]
    """Whether nothing more will come."""
    copied_at: Mapped[datetime] = mapped_column(UtcDateTime)


class JobLogPart(Base):
    """Some bytes of a log."""

    __tablename__ = "job_log_parts"

    experiment_id: Mapped[str] = mapped_column(Id, primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    start_byte: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    """Position of its first byte in the log."""
    data: Mapped[bytes] = mapped_column(Blob)

    __table_args__ = (
        ForeignKeyConstraint(
            ["experiment_id", "attempt"], ["job_logs.experiment_id", "job_logs.attempt"], ondelete="CASCADE"
        ),
    )
