"""Events to rows: each once, in any order, however often it is sent.

An event is known by (subject, attempt, source, seq). What it says changes states only if its run is known
and its attempt is the one that counts; else it is kept with a note. Late figures make their run's summary
and, if the experiment has ended, its comparison be worked out anew. Terminal states never change.
"""

from datetime import datetime

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from phantom_core.protocol import (
    SAMPLER_SOURCE,
    BoardStates,
    Event,
    EventBatch,
    Metrics,
    PowerSamples,
    Window,
)
from services import ingest_series, ingest_states, rounds, summaries
from services.aftermath import after_the_end
from services.database import Database, now
from services.endings import settle
from services.errors import NotFound
from services.event_limits import document, refusal
from services.ingest_lock import Locked, lock, note_news
from services.subjects import Subject, Touched, find_subjects
from services.tables import Attempt, Experiment, Run
from services.tables import Event as EventRow
from services.upserts import insert_new
from services.views import IngestResult
from services.window_rows import windows_of
from services.window_samples import look, windows_near

Identity = tuple[str, int, str, int]
"""Subject, attempt, source, seq."""

SERIES = (Window, Metrics, PowerSamples, BoardStates)
"""Payloads whose rows hold all that they say, so that the log needn't."""


def ingest(db: Database, batch: EventBatch) -> IngestResult:
    """Stores a batch of events and does what they say.

    Args:
        db: The database.
        batch: Events of one experiment, in any order.

    Returns:
        How many were new, known already, and refused, with reasons. A batch may be sent again whole.

    Raises:
        NotFound: There is no such experiment.
    """
    refused: dict[str, int] = {}
    events: dict[Identity, Event] = {}
    repeated = 0
    for event in batch.events:
        reason = refusal(event, batch.experiment_id) or ingest_series.refusal(event)
        if reason is not None:
            refused[reason] = refused.get(reason, 0) + 1
            continue
        identity = (event.subject_id, event.attempt, event.source, event.seq)
        repeated += identity in events
        events.setdefault(identity, event)
    with db.write() as session:
        locked = lock(session, batch.experiment_id)
        if locked is None:
            raise NotFound("experiment", batch.experiment_id)
        moment = now(session)
        new = _store(session, locked, moment, events)
        ended_anew = _apply(session, locked, moment, new) if new else locked.is_to_be_compared
        accepted = len(new)
    if ended_anew:
        after_the_end(db, batch.experiment_id)
    return IngestResult(accepted=accepted, duplicates=len(events) - accepted + repeated, rejected=refused)


def _store(
    session: Session, locked: Locked, moment: datetime, events: dict[Identity, Event]
) -> list[tuple[Event, Subject]]:
    """Adds events to the log.

    Returns:
        Those that are new and about something known, with what they are about.
    """
    subjects = find_subjects(session, locked.id, locked.attempt, events.values())
    rows = []
    for (subject_id, attempt, source, seq), event in events.items():
        subject = subjects[subject_id, attempt]
        keeps_payload = subject.is_unknown or not isinstance(event.payload, SERIES)
        rows.append(
            {
                "experiment_id": locked.id,
                "subject_id": subject_id,
                "attempt": attempt,
                "source": source,
                "seq": seq,
                "kind": event.payload.kind,
                "at": event.at,
                "received_at": moment,
                "note": subject.note,
                "payload": document(event) if keeps_payload else None,
            }
        )
    identity = (EventRow.subject_id, EventRow.attempt, EventRow.source, EventRow.seq)
    stored = {tuple(row) for row in insert_new(session, EventRow, rows, returning=identity)}
    return [
        (event, subjects[event.subject_id, event.attempt]) for key, event in events.items() if key in stored
    ]


def _apply(session: Session, locked: Locked, moment: datetime, new: list[tuple[Event, Subject]]) -> bool:
    """Does what new events say.

    Returns:
        Whether the experiment has ended and is to be compared anew.
    """
    is_heard = not all(event.source.startswith(SAMPLER_SOURCE) for event, _ in new)
    note_news(session, locked.id, moment if is_heard else None)
    known = [(event, subject) for event, subject in new if not subject.is_unknown]
    touched = ingest_series.store(session, locked.id, known)
    changes = any(isinstance(event.payload, tuple(ingest_states.HANDLERS)) for event, _ in known)
    if not (changes or touched.anything or locked.is_to_be_settled):
        # Points of a run under way change nothing but its history: the experiment's row need not be read for them.
        return locked.is_to_be_compared
    experiment = session.get_one(Experiment, locked.id)
    # In the order of causes, so that a batch may hold an end before what led to it.
    for kind, handle in ingest_states.HANDLERS.items():
        for event, subject in sorted(known, key=lambda each: (each[0].at, each[0].seq)):
            if isinstance(event.payload, kind):
                handle(session, subject, event, touched)
    _work_out(session, experiment, touched)
    rounds.log_finished(session, experiment, {run_key for run_key, _ in touched.ends})
    settle(session, experiment)
    return experiment.finished_at is not None and experiment.compared_at is None


def _work_out(session: Session, experiment: Experiment, touched: Touched) -> None:
    """Brings up to date what rests on the batch; of attempts under way nothing does before they end."""
    session.flush()
    near = windows_near(session, touched.spans)
    attempts = touched.attempts | {
        (window.run_key, window.attempt) for window in near if window.run_key is not None
    }
    attempts |= _cut_off_in(session, experiment, touched)
    if not attempts and not touched.baseline:
        return
    ended = [
        (attempt, run)
        for attempt, run in session.execute(_ended(experiment, touched, attempts))
        if touched.baseline or (attempt.run_key, attempt.attempt) in attempts
    ]
    new_ends = [attempt for attempt, _ in ended if (attempt.run_key, attempt.attempt) in touched.ends]
    look(session, experiment, [*near, *windows_of(session, new_ends)])
    for attempt, run in ended:
        windows = windows_of(session, [attempt])
        summaries.spent(session, experiment, attempt, run, windows)
        if attempt.attempt == run.attempt:
            summaries.summarise(session, experiment, run, windows)
        experiment.compared_at = None
    session.flush()


def _cut_off_in(session: Session, experiment: Experiment, touched: Touched) -> set[tuple[int, int]]:
    """Attempts that were cut off in the jobs of which samples came: those tell what they used last."""
    jobs = {span.experiment_attempt for span in touched.spans}
    if not jobs:
        return set()
    found = session.execute(
        select(Attempt.run_key, Attempt.attempt)
        .join(Run, Run.key == Attempt.run_key)
        .where(
            Run.experiment_id == experiment.id,
            Attempt.experiment_attempt.in_(jobs),
            Attempt.outcome.is_not(None),
            Attempt.finish.is_(None),
            Attempt.started_at.is_not(None),
        )
    )
    return {(row.run_key, row.attempt) for row in found}


def _ended(experiment: Experiment, touched: Touched, attempts: set[tuple[int, int]]) -> Select[Attempt, Run]:
    ended = select(Attempt, Run).join(Run, Run.key == Attempt.run_key).where(Attempt.outcome.is_not(None))
    if touched.baseline:
        return ended.where(Run.experiment_id == experiment.id)
    return ended.where(Run.key.in_({run_key for run_key, _ in attempts}))
