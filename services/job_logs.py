"""What jobs printed: copied into the database while Ray has it, without secrets, bounded, and read in pieces.

Ray keeps a job's log with its head, and a head that is gone takes it along. So the dispatcher copies what is new every
few seconds, whole lines only, and keeps the last `KEPT_BYTES` of each start of a job. Of a job that prints faster than
is copied some is left out, and the log says so there. Positions count from the log's
first byte, also where that is no longer kept, so that a byte keeps its position for ever.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from sqlalchemy import ColumnElement, delete, func, or_, select
from sqlalchemy.orm import Session

from services.cluster import Cluster
from services.database import Database, now
from services.errors import NotFound
from services.log_cuts import LOOKED_BEFORE, taken
from services.log_parts import LogPart
from services.log_shares import Share, read_up_to, share_of
from services.mishaps import Mishaps
from services.moves import lock_experiment
from services.ray_requests import ClusterUnreachable
from services.states import LEASED_STATES, TERMINAL_STATES, ExperimentState
from services.tables import Attempt, Experiment, ExperimentAttempt, JobLog, JobLogPart, Run

KEPT_BYTES = 8 * 2**20
"""Most that is kept of one log: its end."""
PART_BYTES = 64 * 2**10
"""Most in one row."""
MOST_COPIED_BYTES = KEPT_BYTES - 2 * PART_BYTES
"""Most that is copied of one log at once: its end. How much is left out before it is said in the log."""
LONGEST_ANSWER = 2**20
"""Most bytes that are read at once."""
NOTHING_WRITTEN = "no job of it has begun, or that one has printed nothing that is kept"
"""Why there is no log of what exists."""
MOST_UNANSWERED = 3
"""Logs in a row that a cluster may give no answer about; then it is away, or too busy to be asked for the others."""
LATE = timedelta(minutes=10)
"""How long after an experiment's end its last lines are looked for."""


@dataclass(frozen=True)
class LogPiece:
    """Some of a log."""

    attempt: int
    """Which start of the job."""
    first_byte: int
    """Position of the first byte of `data`."""
    data: bytes
    """At most `LONGEST_ANSWER`; empty if nothing of what was asked for is kept."""
    kept_from: int
    """Position of the first byte that is still kept."""
    end_byte: int
    """Position behind the log's last byte so far."""
    is_complete: bool
    """Whether nothing more will come."""


def copy_all(
    db: Database,
    cluster: Cluster,
    *,
    job: str | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    mishaps: Mishaps | None = None,
) -> int:
    """Copies what is new of every job that runs, or ended a moment ago; to each experiment its own share.

    A cluster that answers nothing is left alone until the next time.

    Args:
        db: The database.
        cluster: Where the jobs run.
        job: Only this Ray job's; None takes all.
        cancelled: Whether to give up between two jobs.
        mishaps: What went wrong with logs before, and now: none of it is the other logs' business.

    Returns:
        How many logs grew or were completed.
    """
    with db.read() as session:
        wanted = session.execute(
            select(Experiment.id, Experiment.attempt, Experiment.ray_job_id, Experiment.state)
            .join(
                ExperimentAttempt,
                (ExperimentAttempt.experiment_id == Experiment.id)
                & (ExperimentAttempt.attempt == Experiment.attempt),
            )
            .outerjoin(
                JobLog,
                (JobLog.experiment_id == Experiment.id) & (JobLog.attempt == Experiment.attempt),
            )
            .where(
                Experiment.ray_job_id.is_not(None) if job is None else Experiment.ray_job_id == job,
                or_(JobLog.is_complete.is_(None), JobLog.is_complete.is_(False)),
                or_(
                    Experiment.state.in_(LEASED_STATES),
                    Experiment.state.in_(TERMINAL_STATES) & (Experiment.finished_at >= now(session) - LATE),
                ),
            )
            # Where a job's log says nothing itself, an experiment's share begins where the one before has ended.
            .order_by(ExperimentAttempt.begun_at)
        ).all()
    tried = Mishaps() if mishaps is None else mishaps
    copied = unanswered = 0

    def copy(identifier: str, attempt: int, its_job: str, is_over: bool) -> bool:
        nonlocal unanswered
        try:
            grew = _copy(db, cluster, identifier, attempt, its_job, is_over=is_over)
        except ClusterUnreachable:
            unanswered += 1
            raise
        unanswered = 0
        return grew

    for identifier, attempt, its_job, state in wanted:
        if cancelled() or unanswered >= MOST_UNANSWERED:
            break
        assert its_job is not None, "only those that have a job were asked for"
        is_over = ExperimentState(state).is_terminal
        its = partial(copy, identifier, attempt, its_job, is_over)
        copied += tried.attempt(f"copying the log of {identifier}", its, False)
    return copied


def _copy(
    db: Database, cluster: Cluster, experiment_id: str, attempt: int, job: str, *, is_over: bool
) -> bool:
    """Copies what is new of one job's log; whether it grew or was completed."""
    with db.read() as session:
        begin = read_up_to(session, experiment_id, attempt)
    part = cluster.log(job, max(0, (begin or 0) - LOOKED_BEFORE), MOST_COPIED_BYTES)
    if part is None:
        return store(db, experiment_id, attempt, LogPart(begin or 0, b""), ended=True)
    with db.read() as session:
        share = share_of(session, experiment_id, attempt, part, begin)
    # Where its own mark was found, what lies before is others'.
    is_joined = begin is not None and share.begin_byte == part.first_byte
    left_out = max(0, part.first_byte - (begin or 0)) if is_joined else 0
    # Whether it was over was read before the log, so what an ended job printed is all in it.
    return store(db, experiment_id, attempt, part, share, left_out=left_out, ended=share.is_over or is_over)


def store(
    db: Database,
    experiment_id: str,
    attempt: int,
    part: LogPart,
    share: Share | None = None,
    *,
    ended: bool,
    left_out: int = 0,
) -> bool:
    """Adds what is new of a log; any number of processes may do so at once.

    Args:
        db: The database.
        experiment_id: Whose.
        attempt: Which start of its job.
        part: The log's end; what is there already may be in it.
        share: What of the part is the experiment's; None is all of it.
        ended: Whether it will not grow.
        left_out: Bytes of it just before, which can't be had any more.

    Returns:
        Whether anything changed.
    """
    share = share or Share(part.first_byte, part.end_byte, is_over=ended)
    with db.write() as session:
        if lock_experiment(session, experiment_id) is None:
            return False
        head = session.get(JobLog, (experiment_id, attempt))
        if head is None:
            head = JobLog(
                experiment_id=experiment_id, attempt=attempt, read_bytes=share.begin_byte, first_byte=0, end_byte=0,
                is_complete=False, copied_at=now(session),
            )  # fmt: skip
            session.add(head)
            session.flush()
        elif head.read_bytes >= share.begin_byte:
            left_out = 0  # another process was quicker
        if head.is_complete:
            return False
        begin = min(max(head.read_bytes, share.begin_byte), share.end_byte)
        new = taken(part, begin, share.end_byte, ended=ended)
        head.read_bytes = max(head.read_bytes, new.end_byte)
        left_out += new.begin_byte - begin
        data = new.text.encode()
        if not data and not ended and not left_out:
            return False
        # Of a burst that is longer than what is kept, the beginning needn't be written first.
        too_much = max(0, len(data) - MOST_COPIED_BYTES)
        if left_out + too_much:
            _leave_out(session, head, left_out + too_much)
        _append(session, head, data[too_much:])
        head.is_complete, head.copied_at = ended, now(session)
        return True


def attempt_of_run(db: Database, run_id: str) -> tuple[str, int]:
    """The experiment of a run, and the start of its job in which the run was last made.

    Raises:
        NotFound: There is no such run.
    """
    with db.read() as session:
        run = session.scalars(select(Run).where(Run.id == run_id)).one_or_none()
        if run is None:
            raise NotFound("run", run_id)
        attempt = session.get(Attempt, (run.key, run.attempt))
        if attempt is None:
            raise NotFound("log of run", run_id, NOTHING_WRITTEN)
        return run.experiment_id, attempt.experiment_attempt


def end(db: Database, experiment_id: str, attempt: int | None = None) -> LogPiece:
    """Where a log stands, without any of it.

    Args:
        db: The database.
        experiment_id: Whose.
        attempt: Which start of its job; None takes the last that printed anything.

    Raises:
        NotFound: There is no such experiment, or no log of it.
    """
    with db.read() as session:
        return _piece(session, experiment_id, attempt, None, 0)


def read(
    db: Database, experiment_id: str, attempt: int | None = None, *, first_byte: int, length: int
) -> LogPiece:
    """Some of a log.

    Args:
        db: The database.
        experiment_id: Whose.
        attempt: Which start of its job; None takes the last that printed anything.
        first_byte: Position of the first byte; negative counts from the end, as far as bytes are kept.
        length: Most bytes; never more than `LONGEST_ANSWER` come.

    Raises:
        NotFound: There is no such experiment, or no log of it.
    """
    with db.read() as session:
        return _piece(session, experiment_id, attempt, first_byte, min(length, LONGEST_ANSWER))


def _piece(
    session: Session, experiment_id: str, attempt: int | None, first_byte: int | None, length: int
) -> LogPiece:
    if session.get(Experiment, experiment_id) is None:
        raise NotFound("experiment", experiment_id)
    statement = select(JobLog).where(JobLog.experiment_id == experiment_id)
    if attempt is not None:
        statement = statement.where(JobLog.attempt == attempt)
    head = session.scalars(statement.order_by(JobLog.attempt.desc()).limit(1)).first()
    if head is None:
        raise NotFound("log of experiment", experiment_id, NOTHING_WRITTEN)
    begin = head.end_byte if first_byte is None else first_byte
    if begin < 0:
        begin = max(head.first_byte, head.end_byte + begin)
    stop = min(begin + length, head.end_byte)
    data = b""
    if head.first_byte <= begin < stop:
        parts = session.scalars(
            select(JobLogPart)
            .where(
                *_of(experiment_id, head.attempt),
                JobLogPart.start_byte > begin - PART_BYTES,
                JobLogPart.start_byte < stop,
            )
            .order_by(JobLogPart.start_byte)
        ).all()
        data = b"".join(
            part.data[max(0, begin - part.start_byte) : max(0, stop - part.start_byte)] for part in parts
        )
    return LogPiece(head.attempt, begin, data, head.first_byte, head.end_byte, head.is_complete)


def _leave_out(session: Session, head: JobLog, count: int) -> None:
    """Goes on behind bytes that are not kept, and says so in their place."""
    session.execute(delete(JobLogPart).where(*_of(head.experiment_id, head.attempt)))
    said = f"[{count:,} bytes are left out here: more was printed than is copied at once]\n".encode()
    head.end_byte += max(0, count - len(said))
    head.first_byte = head.end_byte
    _append(session, head, said)


def _append(session: Session, head: JobLog, data: bytes) -> None:
    mine = _of(head.experiment_id, head.attempt)
    last = session.scalars(
        select(JobLogPart).where(*mine).order_by(JobLogPart.start_byte.desc()).limit(1)
    ).first()
    if last is not None and len(last.data) < PART_BYTES:
        room = PART_BYTES - len(last.data)
        last.data += data[:room]
        head.end_byte += len(data[:room])
        data = data[room:]
    for begin in range(0, len(data), PART_BYTES):
        piece = data[begin : begin + PART_BYTES]
        session.add(
            JobLogPart(
                experiment_id=head.experiment_id, attempt=head.attempt, start_byte=head.end_byte, data=piece
            )
        )
        head.end_byte += len(piece)
    session.flush()
    session.execute(delete(JobLogPart).where(*mine, JobLogPart.start_byte < head.end_byte - KEPT_BYTES))
    first = session.execute(select(func.min(JobLogPart.start_byte)).where(*mine)).scalar_one()
    head.first_byte = head.end_byte if first is None else first


def _of(experiment_id: str, attempt: int) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return JobLogPart.experiment_id == experiment_id, JobLogPart.attempt == attempt
