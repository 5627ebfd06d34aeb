"""Which part of a Ray job's log is one experiment's: the job's worker group may have made several."""

import re
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from phantom_core.protocol import JOB_LOG_LINE
from services.log_parts import LogPart
from services.tables import ExperimentAttempt, JobLog

_MARK = re.compile(rb"^.*" + JOB_LOG_LINE.encode() + rb"(?P<experiment>[a-z0-9-]+)(?=[,\s])", re.MULTILINE)


@dataclass(frozen=True)
class Share:
    """Which bytes of a part of a job's log are one experiment's."""

    begin_byte: int
    """Position of the first."""
    end_byte: int
    """Position behind the last."""
    is_over: bool
    """Whether the log has gone on to another experiment."""


def began_at(session: Session, experiment_id: str, attempt: int) -> int | None:
    """Where in its job's log an experiment's share can begin at the earliest.

    Rank 0 says in the log which experiment begins. That reaches the log only where Ray forwards what ranks print; the
    head that the service starts does not. Then a share begins where the log stood when the last experiment's ended.

    Args:
        session: A session.
        experiment_id: Whose.
        attempt: Which start of its job.

    Returns:
        The position; None if nothing tells it, since the experiment before was deleted.
    """
    job = session.get(ExperimentAttempt, (experiment_id, attempt))
    if job is None or not job.warm:
        return 0
    earlier: int | None = session.execute(
        select(func.max(JobLog.read_bytes))
        .join(
            ExperimentAttempt,
            (ExperimentAttempt.experiment_id == JobLog.experiment_id)
            & (ExperimentAttempt.attempt == JobLog.attempt),
        )
        .where(ExperimentAttempt.ray_job_id == job.ray_job_id, ExperimentAttempt.begun_at < job.begun_at)
    ).scalar_one()
    return earlier


def read_up_to(session: Session, experiment_id: str, attempt: int) -> int | None:
    """Where what is new of an experiment's share begins; None as for `began_at`."""
    log = session.get(JobLog, (experiment_id, attempt))
    began = began_at(session, experiment_id, attempt)
    return began if log is None else max(log.read_bytes, began or 0)


def share_of(session: Session, experiment_id: str, attempt: int, part: LogPart, begin: int | None) -> Share:
    """What of a part of a job's log is one experiment's: its worker group may have made others before, and after.

    Args:
        session: A session.
        experiment_id: Whose.
        attempt: Which start of its job.
        part: What was read.
        begin: Where the share begins at the earliest; None if nothing tells it.
    """
    marks = [
        (part.first_byte + mark.start(), mark["experiment"].decode()) for mark in _MARK.finditer(part.data)
    ]
    own = [place for place, experiment in marks if experiment == experiment_id]
    job = session.get(ExperimentAttempt, (experiment_id, attempt))
    if job is not None and job.warm and own:
        begin = own[-1]
    elif begin is None:
        begin = part.end_byte
    begin = min(max(begin, part.first_byte), part.end_byte)
    end = next((place for place, experiment in marks if place >= begin and experiment != experiment_id), None)
    return Share(begin, part.end_byte if end is None else end, end is not None)
