"""Events that change states: the worker group reported, a run began or ended, the job said its last word."""

import math
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from phantom_core.protocol import (
    DeviceInfo,
    Event,
    ExperimentFinished,
    ExperimentStarted,
    Progress,
    Reason,
    RunFinished,
    RunSkipped,
    RunStarted,
    Window,
)
from services.database import now
from services.event_limits import document, name, number, text
from services.moves import move_experiment, move_run
from services.states import ExperimentState, RunState
from services.subjects import Subject, Touched
from services.tables import Device, Experiment, ExperimentAttempt
from services.tables import Event as EventRow

Handler = Callable[[Session, Subject, Event, Touched], None]


def experiment_started(session: Session, subject: Subject, event: Event, touched: Touched) -> None:
    """Describes devices and environment; the experiment is running."""
    payload = event.payload
    experiment = session.get_one(Experiment, subject.experiment_id)
    assert isinstance(payload, ExperimentStarted)
    _describe_devices(session, experiment, payload, subject.number)
    if subject.run_key is not None:
        return
    told = document(event)
    environment = {part: told[part] for part in ("backend", "ranks", "versions", "data_digest")}
    job = session.get_one(ExperimentAttempt, (experiment.id, subject.number))
    # A device's row has the latest attempt's limits; runs of this one were made under these.
    job.environment = environment | {"limits": [_limits(device) for device in payload.devices]}
    job.reported_at = min(event.at, now(session))
    touched.baseline = True
    if subject.note is not None:
        return
    experiment.environment = environment
    move_experiment(
        session,
        experiment.id,
        ExperimentState.RUNNING,
        expected={ExperimentState.LEASED, ExperimentState.STARTING},
    )
    experiment.running_at = min(event.at, now(session))


def steps_began(session: Session, subject: Subject, event: Event, _touched: Touched) -> None:
    """A run's set-up is over and its steps begin: the first of an attempt ends the wait for it."""
    payload = event.payload
    assert isinstance(payload, Window)
    if payload.phase not in {"evaluation", "training"} or subject.run_key is None:
        return
    job = session.get(ExperimentAttempt, (subject.experiment_id, subject.experiment_attempt))
    before_s = payload.duration_s if payload.phase == "evaluation" else 0.0  # one comes before the first step
    if job is None or not math.isfinite(before_s):
        return
    began_at = payload.started_at + timedelta(seconds=before_s)
    if job.first_step_at is None or began_at < job.first_step_at:
        job.first_step_at = began_at


def run_started(session: Session, subject: Subject, event: Event, _touched: Touched) -> None:
    """A run began its set-up."""
    rows = subject.rows(session)
    if rows is None:
        return
    run, attempt = rows
    experiment = session.get_one(Experiment, subject.experiment_id)
    attempt.started_at = event.at
    if experiment.first_run_at is None or event.at < experiment.first_run_at:
        experiment.first_run_at = event.at
    if subject.note is not None:
        return
    move_run(session, run, RunState.RUNNING, at=event.at)
    run.started_at = event.at


def run_finished(session: Session, subject: Subject, event: Event, touched: Touched) -> None:
    """A run ended; the rest of its summary comes from its windows."""
    payload, rows = event.payload, subject.rows(session)
    assert isinstance(payload, RunFinished)
    if rows is None:
        return
    run, attempt = rows
    touched.attempts.add((run.key, subject.number))
    touched.ends.add((run.key, subject.number))
    if attempt.finish is not None:
        _note(session, event, "this attempt's end was told before; nothing changed")
        return
    attempt.finish = document(event)
    if attempt.outcome is None:
        attempt.outcome, attempt.reason = payload.outcome, payload.reason
        attempt.message, attempt.finished_at = text(payload.message), event.at
    if subject.note is not None:
        return
    if RunState(run.state).is_terminal:
        _note(session, event, f"the run had ended as {run.state}; its figures are kept, its state is final")
        return
    if run.state == RunState.QUEUED:
        move_run(session, run, RunState.RUNNING, at=attempt.started_at or event.at)
    move_run(
        session,
        run,
        RunState(payload.outcome),
        reason=payload.reason,
        message=text(payload.message),
        at=event.at,
    )


def run_skipped(session: Session, subject: Subject, event: Event, _touched: Touched) -> None:
    """A run is not needed; one that began or ended meanwhile stays what it is."""
    payload, rows = event.payload, subject.rows(session)
    assert isinstance(payload, RunSkipped)
    if rows is None or subject.note is not None:
        return
    run, attempt = rows
    message = text(payload.message)
    if not move_run(session, run, RunState.SKIPPED, reason=payload.reason, message=message, at=event.at):
        _note(session, event, f"the run was {run.state} already, so it was not skipped")
        return
    attempt.outcome, attempt.reason = RunState.SKIPPED, payload.reason
    attempt.message, attempt.finished_at = message, event.at


def experiment_finished(session: Session, subject: Subject, event: Event, _touched: Touched) -> None:
    """The job's last word; `endings.settle` acts on it once the runs have ended."""
    payload = event.payload
    experiment = session.get_one(Experiment, subject.experiment_id)
    assert isinstance(payload, ExperimentFinished)
    if subject.note is not None or subject.run_key is not None:
        return
    # Ranks that stood still have got on after all, if they say so in time.
    is_last = experiment.reported_outcome is not None and experiment.reported_reason != Reason.NO_PROGRESS
    if is_last:
        _note(session, event, "the job's end was told before; nothing changed")
        return
    experiment.reported_outcome = payload.outcome
    experiment.reported_reason = payload.reason
    experiment.reported_message = text(payload.message)


def progress(session: Session, subject: Subject, event: Event, _touched: Touched) -> None:
    """A line for people; the latest by the job's clock stands."""
    payload = event.payload
    experiment = session.get_one(Experiment, subject.experiment_id)
    assert isinstance(payload, Progress)
    if subject.note is not None:
        return
    line = f"{payload.message} ({payload.done} of {payload.total} runs)"
    latest = (experiment.progress_at or event.at, experiment.progress or "")
    if (event.at, line) >= latest:
        experiment.progress_at, experiment.progress = event.at, text(line)


HANDLERS: Mapping[type, Handler] = {
    ExperimentStarted: experiment_started,
    RunStarted: run_started,
    Window: steps_began,
    RunFinished: run_finished,
    RunSkipped: run_skipped,
    Progress: progress,
    ExperimentFinished: experiment_finished,
}
"""What each kind does, in the order of causes."""


def _describe_devices(
    session: Session, experiment: Experiment, started: ExperimentStarted, attempt: int
) -> None:
    rows = {
        (row.host, row.uuid): row
        for row in session.scalars(select(Device).where(Device.experiment_id == experiment.id))
    }
    for device in started.devices:
        row = rows[name(device.host), name(device.uuid)]
        if attempt < row.attempt:
            continue
        row.attempt = attempt
        row.kind, row.name = device.kind, name(device.name)
        row.method, row.scope, row.reason = device.method, device.scope, text(device.reason)
        row.driver = text(device.driver, 64)
        row.power_limit_mw, row.memory_bytes = number(device.power_limit_mw), device.memory_bytes
        row.clock_limit_mhz = number(device.clock_limit_mhz)
        row.memory_clock_limit_mhz = number(device.memory_clock_limit_mhz)


def _limits(device: DeviceInfo) -> dict[str, Any]:
    return {
        "host": name(device.host),
        "uuid": name(device.uuid),
        "power_mw": number(device.power_limit_mw),
        "clock_mhz": number(device.clock_limit_mhz),
        "memory_clock_mhz": number(device.memory_clock_limit_mhz),
    }


def _note(session: Session, event: Event, note: str) -> None:
    session.execute(
        update(EventRow)
        .where(
            EventRow.subject_id == event.subject_id,
            EventRow.attempt == event.attempt,
            EventRow.source == event.source,
            EventRow.seq == event.seq,
        )
        .values(note=note)
    )
