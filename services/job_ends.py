"""What the end of an experiment's job means for the experiment, where its ranks did not say so themselves."""

from phantom_core.protocol import Reason
from services.cluster import Cluster, JobStatus
from services.database import Database
from services.deadlines import Ending
from services.event_limits import text
from services.leases import FollowView
from services.log_cuts import LOOKED_BEFORE, taken
from services.log_parts import EMPTY, LogPart
from services.log_shares import began_at, read_up_to, share_of
from services.ray_requests import ClusterError
from services.states import ExperimentState

LOG_TAIL_CHARACTERS = 2_000
"""Most of a log that a message quotes."""
LOG_IN_MESSAGE = 10_000
"""Bytes of a log in Ray's own message from which on its beginning may be cut off; Ray does so at 20,000 characters."""
LOOKED_THROUGH = 2**16
"""Bytes at a log's end in which secrets are looked for."""


def judged(
    db: Database, cluster: Cluster, experiment_id: str, job: str, view: FollowView, status: JobStatus | None
) -> Ending:
    """How an experiment whose job is over would end, if it is not tried again.

    Args:
        db: The database.
        cluster: Where the job ran.
        experiment_id: The experiment, which has not ended.
        job: The Ray job of its current attempt.
        view: How the experiment stands.
        status: Ray's last word on the job; None if it knows it no longer.
    """
    if view.reported_outcome == "failed":
        return Ending(
            ExperimentState.FAILED,
            view.reported_reason or Reason.JOB_FAILED,
            view.reported_message or "the job reported that it failed",
        )
    if status is None:
        return Ending(
            ExperimentState.LOST,
            Reason.JOB_UNKNOWN,
            "Ray no longer knows the job: its head was restarted or lost",
        )
    if status.state == "STOPPED":
        return Ending(
            ExperimentState.CANCELLED,
            Reason.JOB_STOPPED,
            "the job was stopped from outside, through Ray's dashboard or command",
        )
    tail = _log_tail(db, cluster, experiment_id, job, view.attempt)
    if status.state == "SUCCEEDED":
        what = f"the job ended but {view.runs_left} runs were never reported"
    else:
        # Ray appends the log to its message too.
        what = f"the job failed: {status.message.partition(chr(10))[0] if tail else _whole(status.message)}"
    return Ending(ExperimentState.FAILED, Reason.JOB_FAILED, text(f"{what}\n{tail}".strip()) or what)


def _whole(message: str) -> str:
    """Ray's message with the log's end in it, which may begin in the middle of a word, and so of a secret."""
    said, _, end = message.partition("\n")
    part = LogPart(1, end.encode())
    if part.end_byte <= LOG_IN_MESSAGE:
        return message
    return f"{said}\n{taken(part, 1, part.end_byte, ended=True).text}"


def _log_tail(db: Database, cluster: Cluster, experiment_id: str, job: str, attempt: int) -> str:
    """The last lines that an attempt's job printed for the experiment; empty if they can't be had."""
    with db.read() as session:
        began = began_at(session, experiment_id, attempt)
        begin = read_up_to(session, experiment_id, attempt) if began is None else began
    try:
        # Much more than is quoted: what is blotted out makes room for what stands before it.
        part = cluster.log(job, max(0, (begin or 0) - LOOKED_BEFORE), LOOKED_THROUGH) or EMPTY
    except ClusterError:
        return ""
    with db.read() as session:
        share = share_of(session, experiment_id, attempt, part, begin)
    end = taken(part, share.begin_byte, share.end_byte, ended=True).text
    return end[-LOG_TAIL_CHARACTERS:].strip()
