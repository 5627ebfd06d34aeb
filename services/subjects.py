"""What events are about: the experiment or one of its runs, and whether their attempt is the current one."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

from sqlalchemy import Select, bindparam, select
from sqlalchemy.orm import Session

from phantom_core.protocol import Event
from services.tables import Attempt, Run, table
from services.window_rows import Span


@dataclass(frozen=True)
class Subject:
    """What an event is about; keys, since most events bring figures and need no more of it."""

    experiment_id: str
    """The experiment."""
    run_key: int | None
    """None for the experiment itself, and for a run that there isn't."""
    number: int
    """Number of the attempt."""
    experiment_attempt: int
    """Attempt of the experiment that it happened in."""
    note: str | None
    """Why it changes no state; None if it may."""
    is_unknown: bool
    """Whether there is no such run or attempt, so that there is no row to hang its figures on."""

    def rows(self, session: Session) -> tuple[Run, Attempt] | None:
        """The run and its attempt; None for the experiment itself, and for what is unknown."""
        if self.run_key is None or self.is_unknown:
            return None
        run = session.get_one(Run, self.run_key)
        return run, session.get_one(Attempt, (self.run_key, self.number))


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

    @property
    def anything(self) -> bool:
        """Whether there is something to work out."""
        return bool(self.attempts or self.spans or self.baseline)


def find_subjects(
    session: Session, experiment_id: str, experiment_attempt: int, events: Iterable[Event]
) -> dict[tuple[str, int], Subject]:
    """What the events are about, by (subject, attempt).

    Args:
        session: A session that holds the experiment's lock.
        experiment_id: Whose events they are.
        experiment_attempt: Its attempt that counts.
        events: In any order.
    """
    wanted = {(event.subject_id, event.attempt) for event in events}
    names = {subject_id for subject_id, _ in wanted if subject_id != experiment_id}
    known: dict[tuple[str, int], _Known] = {}
    current: dict[str, int] = {}
    if names:
        values = {"experiment_id": experiment_id, "names": list(names)}
        for run_id, key, last, number, job in session.connection().execute(_attempts_of_runs(), values):
            current[run_id] = last
            known[run_id, number] = key, job
    return {
        (subject_id, number): (
            _of_experiment(experiment_id, experiment_attempt, number)
            if subject_id == experiment_id
            else _of_run(
                experiment_id,
                experiment_attempt,
                known.get((subject_id, number)),
                current.get(subject_id),
                number,
            )
        )
        for subject_id, number in wanted
    }


_Known = tuple[int, int]
"""Key of a run, and the experiment's attempt that one of its own belongs to."""


@cache
def _attempts_of_runs() -> Select[str, int, int, int, int]:
    # Made once: making it costs as much as running it. Of tables, since rows of the ORM cost more than both.
    runs, attempts = table(Run).c, table(Attempt).c
    return (
        select(runs.id, runs.key, runs.attempt, attempts.attempt, attempts.experiment_attempt)
        .join_from(table(Run), table(Attempt), attempts.run_key == runs.key, isouter=True)
        .where(runs.experiment_id == bindparam("experiment_id"))
        .where(runs.id.in_(bindparam("names", expanding=True)))
    )


def _of_experiment(experiment_id: str, current: int, number: int) -> Subject:
    note = None
    if number > current:
        note = f"attempt {number} has not begun"
    elif number < current:
        note = _superseded(number, current)
    return Subject(experiment_id, None, number, number, note, is_unknown=number > current)


def _of_run(
    experiment_id: str, experiment_attempt: int, known: _Known | None, last: int | None, number: int
) -> Subject:
    note = None
    if last is None:
        note = "the experiment has no such run"
    elif known is None:
        note = f"attempt {number} was never assigned"
    elif number != last or known[1] != experiment_attempt:
        note = _superseded(number, max(last, number + 1))
    key, job = known or (None, 0)
    return Subject(experiment_id, key, number, job, note, is_unknown=known is None)


def _superseded(number: int, current: int) -> str:
    return f"attempt {number} was superseded by attempt {current}; its figures are kept, no state changed"
