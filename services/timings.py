"""Where the time of an experiment went, by attempt and in all of them, and what it is doing right now."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from services.tables import Experiment, ExperimentAttempt
from services.views import JobAttemptView, PhaseView, TimingsView

PHASES = ("queued", "cluster", "start_up", "set_up", "runs")
"""In order; each ends where the next begins."""
NEXT_MARK = {
    "queued": "a dispatcher had taken it",
    "cluster": "its job had asked what to do",
    "start_up": "its worker group had reported",
    "set_up": "its first step",
}
"""What ends each phase before the runs."""


def of_experiment(
    experiment: Experiment, attempts: Sequence[ExperimentAttempt], moment: datetime
) -> tuple[TimingsView, PhaseView]:
    """Timings of an experiment, summed over its attempts, and its phase.

    Args:
        experiment: The experiment.
        attempts: All of them, in order.
        moment: Now, by the database's clock.
    """
    end = experiment.finished_at or moment
    seconds: list[float | None] = [None] * len(PHASES)
    marks: list[datetime | None] = []
    for marks, ended in _stints(experiment, attempts, end):
        for position, span in enumerate(_spans(marks, ended)):
            if span is not None:
                seconds[position] = (seconds[position] or 0.0) + span
    timings = TimingsView(
        queued_s=seconds[0],
        cluster_s=seconds[1],
        start_up_s=seconds[2],
        set_up_s=seconds[3],
        running_s=seconds[4],
        total_s=_seconds(experiment.submitted_at, end),
    )
    if experiment.finished_at is not None:
        return timings, PhaseView(name="ended", since=experiment.finished_at, elapsed_s=None)
    name, since = [(name, mark) for name, mark in zip(PHASES, marks, strict=True) if mark is not None][-1]
    return timings, PhaseView(name=name, since=since, elapsed_s=_seconds(since, moment))


def of_attempts(experiment: Experiment, attempts: Sequence[ExperimentAttempt]) -> tuple[JobAttemptView, ...]:
    """Every start of an experiment's job, in order; a span that has no end yet, or never had, is None."""
    views = []
    waiting_since = experiment.submitted_at
    for attempt in attempts:
        marks = _marks(waiting_since, attempt)
        spans = [
            None if begun is None or ended is None else _seconds(begun, ended)
            for begun, ended in pairwise(marks)
        ]
        views.append(
            JobAttemptView(
                attempt=attempt.attempt,
                ray_job_id=attempt.ray_job_id,
                warm=attempt.warm,
                queued_s=spans[0],
                cluster_s=spans[1],
                start_up_s=spans[2],
                set_up_s=spans[3],
                timings_reason=_reason(marks, attempt.ended_at is not None),
                begun_at=attempt.begun_at,
                ended_at=attempt.ended_at,
                reason=attempt.reason,
                message=attempt.message,
            )
        )
        waiting_since = attempt.ended_at or waiting_since
    return tuple(views)


def _stints(
    experiment: Experiment, attempts: Sequence[ExperimentAttempt], end: datetime
) -> Iterator[tuple[list[datetime | None], datetime]]:
    """When each of `PHASES` began in each attempt, and when that ended; last a wait that led to no attempt."""
    waiting_since = experiment.submitted_at
    for attempt in attempts:
        yield _marks(waiting_since, attempt), attempt.ended_at or end
        if attempt.ended_at is None:
            return
        waiting_since = attempt.ended_at
    if not attempts or experiment.finished_at is None or waiting_since < experiment.finished_at:
        yield [*_in_order(waiting_since, experiment.leased_at), None, None, None], end


def _marks(waiting_since: datetime, attempt: ExperimentAttempt) -> list[datetime | None]:
    return _in_order(
        waiting_since, attempt.leased_at, attempt.reached_at, attempt.reported_at, attempt.first_step_at
    )


def _in_order(first: datetime, *later: datetime | None) -> list[datetime | None]:
    """None before the one that it comes after: an attempt may take over the lease of the one before."""
    marks: list[datetime | None] = [first]
    for mark in later:
        first = first if mark is None else max(first, mark)
        marks.append(None if mark is None else first)
    return marks


def _spans(marks: Sequence[datetime | None], end: datetime) -> list[float | None]:
    spans: list[float | None] = []
    for position, begun in enumerate(marks):
        # A phase that was left out (cancelled while queued, say) ends when the experiment does.
        after = next((mark for mark in marks[position + 1 :] if mark is not None), end)
        spans.append(None if begun is None else _seconds(begun, after))
    return spans


def _reason(marks: Sequence[datetime | None], is_over: bool) -> str | None:
    missing = next((name for name, mark in zip(PHASES, marks[1:], strict=False) if mark is None), None)
    if missing is None:
        return None
    if any(mark is not None for mark in marks[PHASES.index(missing) + 2 :]):
        return f"when {NEXT_MARK[missing]} is not known: the attempt was begun by an older version"
    return f"the attempt ended before {NEXT_MARK[missing]}" if is_over else f"not yet: {missing} goes on"


def _seconds(begun: datetime, ended: datetime) -> float:
    return max(0.0, (ended - begun) / timedelta(seconds=1))
