"""The two state machines: which states there are, and which may follow which.

Every change is a compare-and-set on the old state (`experiments.move_experiment`, `runs.move_run`).
Terminal is final. `running` means that the worker group reported, not that Ray says so.

    experiment:  queued -> leased -> starting -> running -> succeeded | failed | cancelled | lost
    run:         queued -> running -> succeeded | diverged | failed | cancelled
                 queued -> skipped | cancelled

An infrastructure fault may bring an experiment back to `leased` for another attempt, and with it its
running runs back to `queued`; a dispatcher that can't start an experiment gives it back to `queued`, and so does one
that is told to end and ends the head that ran its job (by way of `leased`).
"""

from collections.abc import Mapping
from enum import StrEnum

from phantom_core.protocol import Reason


class ExperimentState(StrEnum):
    """What an experiment is doing."""

    QUEUED = "queued"
    LEASED = "leased"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing can follow."""
        return not EXPERIMENT_TRANSITIONS[self]


class RunState(StrEnum):
    """What a run is doing."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DIVERGED = "diverged"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    """Planned and never begun, since the comparison was precise without it (`rounds: auto`)."""

    @property
    def is_terminal(self) -> bool:
        """Whether nothing can follow."""
        return not RUN_TRANSITIONS[self]


class GroupState(StrEnum):
    """What a worker group is doing. Its row goes when it has ended."""

    WORKING = "working"
    """Its ranks start, or make an experiment."""
    IDLE = "idle"
    """Made one well, and waits for the next."""
    OFFERED = "offered"
    """Was given the next, and hasn't asked since."""
    ENDING = "ending"
    """Is to end, and gets nothing any more."""


EXPERIMENT_TRANSITIONS: Mapping[ExperimentState, frozenset[ExperimentState]] = {
    ExperimentState.QUEUED: frozenset(
        {ExperimentState.LEASED, ExperimentState.FAILED, ExperimentState.CANCELLED}
    ),
    # The job may report before its submission is written down, so `leased` can be followed by `running`.
    ExperimentState.LEASED: frozenset(
        {
            ExperimentState.QUEUED,
            ExperimentState.STARTING,
            ExperimentState.RUNNING,
            ExperimentState.FAILED,
            ExperimentState.CANCELLED,
            ExperimentState.LOST,
        }
    ),
    ExperimentState.STARTING: frozenset(
        {
            ExperimentState.LEASED,
            ExperimentState.RUNNING,
            ExperimentState.FAILED,
            ExperimentState.CANCELLED,
            ExperimentState.LOST,
        }
    ),
    ExperimentState.RUNNING: frozenset(
        {
            ExperimentState.LEASED,
            ExperimentState.SUCCEEDED,
            ExperimentState.FAILED,
            ExperimentState.CANCELLED,
            ExperimentState.LOST,
        }
    ),
    ExperimentState.SUCCEEDED: frozenset(),
    ExperimentState.FAILED: frozenset(),
    ExperimentState.CANCELLED: frozenset(),
    ExperimentState.LOST: frozenset(),
}
"""What may follow each state of an experiment."""

RUN_TRANSITIONS: Mapping[RunState, frozenset[RunState]] = {
    RunState.QUEUED: frozenset({RunState.RUNNING, RunState.SKIPPED, RunState.CANCELLED}),
    RunState.RUNNING: frozenset(
        {RunState.QUEUED, RunState.SUCCEEDED, RunState.DIVERGED, RunState.FAILED, RunState.CANCELLED}
    ),
    RunState.SUCCEEDED: frozenset(),
    RunState.DIVERGED: frozenset(),
    RunState.FAILED: frozenset(),
    RunState.CANCELLED: frozenset(),
    RunState.SKIPPED: frozenset(),
}
"""What may follow each state of a run."""

LEASED_STATES = frozenset({ExperimentState.LEASED, ExperimentState.STARTING, ExperimentState.RUNNING})
"""States in which a dispatcher owns the experiment, until its lease runs out."""

TERMINAL_STATES = frozenset(state for state in ExperimentState if state.is_terminal)
"""States that nothing follows."""

TERMINAL_RUN_STATES = frozenset(state for state in RunState if state.is_terminal)
"""States of a run that nothing follows."""

RUNS_LEFT_BY: Mapping[ExperimentState, Mapping[RunState, RunState]] = {
    ExperimentState.SUCCEEDED: {RunState.QUEUED: RunState.CANCELLED, RunState.RUNNING: RunState.FAILED},
    ExperimentState.FAILED: {RunState.QUEUED: RunState.CANCELLED, RunState.RUNNING: RunState.FAILED},
    ExperimentState.CANCELLED: {RunState.QUEUED: RunState.CANCELLED, RunState.RUNNING: RunState.CANCELLED},
    ExperimentState.LOST: {RunState.QUEUED: RunState.CANCELLED, RunState.RUNNING: RunState.FAILED},
}
"""Where an ending experiment leaves its unfinished runs: one that never began can't have failed."""

DEFAULT_REASONS: Mapping[ExperimentState, Reason] = {
    ExperimentState.FAILED: Reason.JOB_FAILED,
    ExperimentState.CANCELLED: Reason.CANCELLED_BY_USER,
    ExperimentState.LOST: Reason.JOB_UNKNOWN,
}
"""Why an experiment ended, where nobody says."""
