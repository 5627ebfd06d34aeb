"""What watchers of an experiment are told."""

from datetime import datetime
from typing import Any

from services.views.base import View


class Occurrence(View):
    """One thing that happened to an experiment or to one of its runs."""

    id: int
    """Grows along the experiment's log, with gaps; pass the last one as `Last-Event-ID` to go on after it."""
    kind: str
    """What happened: `state`, `attempt`, `cancel_requested`, `delete_requested`, `experiment_started`,
    `run_started`, `run_finished`, `progress`, or `round_finished`, with which the comparison changes."""
    experiment_id: str
    """The experiment."""
    run_id: str | None
    """The run; None for the experiment itself."""
    attempt: int
    """Which start of it."""
    at: datetime
    """When it happened."""
    is_last: bool
    """Whether it ended the experiment: nothing follows."""
    data: dict[str, Any]
    """More, by kind: `from`, `to`, `reason` and `message` of a state; `outcome` and figures of a run's end; `round`."""
