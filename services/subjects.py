"""What events are about: the experiment or one of its runs, and whether their attempt is the current one."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.orm import Session

from phantom_core.protocol import Event
from services.tables import Attempt, Experiment, Run
from services.window_rows import Span


@dataclass(frozen=True)
class Subject:
    """What an event is about."""

    experiment: Experiment
    """The experiment, locked."""
    run: Run | None
    """None for the experiment itself."""
    attempt: Attempt | None
    """The run's attempt; None for the experiment itself."""
    number: int
    """Number of the attempt."""
    experiment_attempt: int
    """Attempt of the experiment that it happened in."""
    note: str | None
    """Why it changes no state; None if it may."""
    is_unknown: bool
    """Whether there is no such run or attempt, so that there is no row to hang its figures on."""


@dataclass
class Touched:
    """What a batch brought, so that only what rests on it is worked out anew."""

    attempts: set[tuple[int, int]] = field(default_factory=set)
    """(run key, attempt) of which windows or the end came."""
    ends: set[tuple[int, int]] = field(default_factory=set)
    """Those among them of which the end came."""
    spans: list[Span] = field(default_factory=list)
    """Where on which device windows, samples or states came."""
    baseline: bool = False
    """Whether something came that all runs rest on: idle windows, or the list of ranks."""


def find_subjects(
    session: Session, experiment: Experiment, events: Iterable[Event]
) -> dict[tuple[str, int], Subject]:
    """What the events are about, by (subject, attempt)."""
    wanted = {(event.subject_id, event.attempt) for event in events}
    names = {subject_id for subject_id, _ in wanted if subject_id != experiment.id}
    runs = {
        run.id: run
        for run in session.scalars(select(Run).where(Run.experiment_id == experiment.id, Run.id.in_(names)))
    }
    attempts = {
        (attempt.run_key, attempt.attempt): attempt
        for attempt in session.scalars(
            select(Attempt).where(Attempt.run_key.in_([run.key for run in runs.values()]))
        )
    }
    found = {}
    for subject_id, number in wanted:
        if subject_id == experiment.id:
            found[subject_id, number] = _of_experiment(experiment, number)
        else:
            run = runs.get(subject_id)
            attempt = attempts.get((run.key, number)) if run else None
            found[subject_id, number] = _of_run(experiment, run, attempt, number)
    return found


def _of_experiment(experiment: Experiment, number: int) -> Subject:
    note = None
    if number > experiment.attempt:
        note = f"attempt {number} has not begun"
    elif number < experiment.attempt:
        note = _superseded(number, experiment.attempt)
    return Subject(experiment, None, None, number, number, note, is_unknown=number > experiment.attempt)


def _of_run(experiment: Experiment, run: Run | None, attempt: Attempt | None, number: int) -> Subject:
    note = None
    if run is None:
        note = "the experiment has no such run"
    elif attempt is None:
        note = f"attempt {number} was never assigned"
    elif number != run.attempt or attempt.experiment_attempt != experiment.attempt:
        note = _superseded(number, max(run.attempt, number + 1))
    return Subject(
        experiment,
        run,
        attempt,
        number,
        attempt.experiment_attempt if attempt else 0,
        note,
        is_unknown=attempt is None,
    )


def _superseded(number: int, current: int) -> str:
    return f"attempt {number} was superseded by attempt {current}; its figures are kept, no state changed"
