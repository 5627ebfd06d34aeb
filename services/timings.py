"""Where the time before an experiment's first step went, by attempt, and what it is doing right now."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from services.states import ExperimentState
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
    experiment: Experiment, last: ExperimentAttempt | None, moment: datetime
) -> tuple[TimingsView, PhaseView]:
    """Timings of an experiment by its last attempt, and its phase.

    Args:
        experiment: The experiment.
        last: Its last attempt; None before the first.
        moment: Now, by the database's clock.
    """
    end = experiment.finished_at or moment
    marks = [experiment.submitted_at, experiment.leased_at, *_marks(last)]
    if experiment.state == ExperimentState.QUEUED:
        marks[1:] = [None] * 4
    elif last is not None and last.leased_at != experiment.leased_at:
        marks[2:] = [None] * 3  # taken again, and no attempt begun yet
    spans = _spans(marks, end)
    timings = TimingsView(
        queued_s=spans[0],
        cluster_s=spans[1],
        start_up_s=spans[2],
        set_up_s=spans[3],
        running_s=spans[4],
        total_s=_seconds(experiment.submitted_at, end),
    )
    if experiment.finished_at is not None:
        return timings, PhaseView(name="ended", since=experiment.finished_at)
    name, since = [(name, mark) for name, mark in zip(PHASES, marks, strict=True) if mark is not None][-1]
    return timings, PhaseView(name=name, since=since)


def of_attempts(experiment: Experiment, attempts: Sequence[ExperimentAttempt]) -> tuple[JobAttemptView, ...]:
    """Every start of an experiment's job, in order; a span that has no end yet, or never had, is None."""
    views = []
    waiting_since = experiment.submitted_at
    for attempt in attempts:
        marks = [waiting_since, attempt.leased_at, *_marks(attempt)]
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


def _marks(attempt: ExperimentAttempt | None) -> list[datetime | None]:
    if attempt is None:
        return [None, None, None]
    return [attempt.reached_at, attempt.reported_at, attempt.first_step_at]


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
