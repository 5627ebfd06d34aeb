"""Which part of a Ray job's log is one experiment's: the job's worker group may have made several."""

import re
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from phantom_core.protocol import JOB_LOG_LINE
from services.tables import ExperimentAttempt, JobLog

_MARK = re.compile(rf"^.*{JOB_LOG_LINE}(?P<experiment>[a-z0-9-]+)", re.MULTILINE)


@dataclass(frozen=True)
class Share:
    """Which characters of a job's log are one experiment's."""

    begin: int
    """The first."""
    end: int
    """Behind the last so far."""
    is_over: bool
    """Whether the log has gone on to another experiment."""


def share_of(session: Session, experiment_id: str, attempt: int, text: str) -> Share:
    """What of a job's log is one experiment's: its worker group may have made others before, and after.

    Rank 0 says in the log which experiment begins. That reaches the log only where Ray forwards what ranks print; the
    head that the service starts does not. Then a share begins where the log stood when the last experiment's ended.

    Args:
        session: A session.
        experiment_id: Whose.
        attempt: Which start of its job.
        text: The whole log so far.
    """
    marks = [(mark.start(), mark["experiment"]) for mark in _MARK.finditer(text)]
    own = [place for place, experiment in marks if experiment == experiment_id]
    begin = own[-1] if own else 0
    job = session.get(ExperimentAttempt, (experiment_id, attempt))
    if job is not None and not job.warm:
        begin = 0
    elif job is not None and not own:
        earlier = session.execute(
            select(func.max(JobLog.read_characters))
            .join(
                ExperimentAttempt,
                (ExperimentAttempt.experiment_id == JobLog.experiment_id)
                & (ExperimentAttempt.attempt == JobLog.attempt),
            )
            .where(
                ExperimentAttempt.ray_job_id == job.ray_job_id,
                ExperimentAttempt.begun_at < job.begun_at,
            )
        ).scalar_one()
        if earlier is None:
            # Of what was deleted since, nothing is known: what is there at the first look may be all its.
            own_log = session.get(JobLog, (experiment_id, attempt))
            earlier = len(text) if own_log is None else own_log.read_characters
        begin = min(earlier, len(text))
    end = next((place for place, experiment in marks if place > begin and experiment != experiment_id), None)
    return Share(begin, len(text) if end is None else end, end is not None)
