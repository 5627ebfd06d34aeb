"""`rounds: auto` as the service sees it: planned to the most, skipped when precise, gone on with after a crash."""

import math
import random

import pytest

from phantom_core.intervals import LEVEL, SEQUENTIAL_LEVEL
from phantom_core.protocol import Event, Reason
from services import assignments, comparisons, experiments, leases, runs
from services.database import Database
from services.validation import validate
from tests.services.simulated_job import Figures, SimulatedJob, begun, deliver, ran, spec

AUTO = {"rounds": "auto", "max_rounds": 8, "precision": 0.05}


def scattered(job: SimulatedJob, rounds: int, scatter: float = 0.01) -> list[Event]:
    """The first rounds of a job whose phantom arm saves about 40 %."""
    chance = random.Random(1)
    events = list(job.started())
    for run in job.assignment.runs[: 2 * rounds]:
        power_mw = 60_000.0 * math.exp(chance.gauss(0, scatter)) if run.arm == "phantom" else 100_000.0
        events += job.run(run, Figures(power_mw=power_mw))
    return events


def test_as_many_rounds_are_planned_as_may_be_needed(database: Database) -> None:
    auto = spec(measurement=AUTO)
    view = validate(auto)
    assert (view.valid, view.rounds, view.runs) == (True, 8, 16)
    identifier, _, job = begun(database, auto)
    assert experiments.get(database, identifier).rounds == 8
    assert len(job.assignment.runs) == 16
    assert job.assignment.plan.spec == auto
    assert job.assignment.made == ()


def test_runs_that_are_not_needed_are_skipped_and_the_experiment_succeeds(database: Database) -> None:
    identifier, _, job = begun(database, spec(measurement=AUTO))
    deliver(database, job, scattered(job, 5))
    running = comparisons.compare(database, identifier)
    assert running.rounds_planned == 8
    # The job's last word may come before those of its runs.
    skipped = list(job.skipped(job.assignment.runs[10:]))
    deliver(database, job, job.finished())
    assert experiments.get(database, identifier).state == "running"
    deliver(database, job, skipped)
    experiment = experiments.get(database, identifier)
    assert (experiment.state, experiment.runs) == ("succeeded", {"succeeded": 10, "skipped": 6})
    last = runs.list_runs(database, identifier).items[-1]
    assert (last.state, last.reason, last.is_terminal) == ("skipped", Reason.PRECISION_REACHED, True)
    assert last.message == "all is known to ± 1 %"
    view = comparisons.compare(database, identifier)
    assert (view.rounds_planned, view.precision) == (5, 0.05)
    primary = view.arms[0].primary
    assert (primary.pairs, primary.verdict, primary.excluded) == (5, "saves", ())


def test_what_is_skipped_twice_or_too_late_changes_nothing(database: Database) -> None:
    identifier, _, job = begun(database, spec(measurement=AUTO))
    deliver(database, job, scattered(job, 5))
    made, left = job.assignment.runs[0], job.assignment.runs[10:]
    deliver(database, job, job.skipped([made, *left]))
    deliver(database, job, job.skipped(left))
    assert experiments.get(database, identifier).runs == {"succeeded": 10, "skipped": 6}
    (attempt,) = runs.get(database, made.run_id).attempts
    assert attempt.outcome == "succeeded"
    (attempt,) = runs.get(database, left[0].run_id).attempts
    assert (attempt.outcome, attempt.energy_mj) == ("skipped", None)


def test_an_interval_that_decided_when_to_stop_is_made_wider(database: Database) -> None:
    widths = {}
    for rounds in (5, "auto"):
        identifier, _, job = begun(database, spec(measurement=AUTO | {"rounds": rounds}))
        deliver(database, job, scattered(job, 5))
        primary = comparisons.compare(database, identifier).arms[0].primary
        assert primary.ratio_low is not None
        assert primary.ratio_high is not None
        widths[rounds] = math.log(primary.ratio_high / primary.ratio_low)
        deliver(database, job, [*job.skipped(job.assignment.runs[10:]), *job.finished()])
    from scipy import stats

    wider = stats.t.ppf(0.5 + SEQUENTIAL_LEVEL / 2, 4) / stats.t.ppf(0.5 + LEVEL / 2, 4)
    assert widths["auto"] / widths[5] == pytest.approx(wider, rel=0.02)


def test_another_attempt_is_told_what_was_made_before(database: Database) -> None:
    identifier, lease, job = begun(database, spec(measurement=AUTO))
    deliver(database, job, scattered(job, 2))
    failed = job.assignment.runs[4]
    deliver(database, job, job.run(failed, Figures(outcome="failed")))
    leases.begin_attempt(database, lease, reason=Reason.WORKER_LOST)
    again = assignments.assignment(database, identifier)
    assert again.runs[0].run_id == job.assignment.runs[5].run_id
    assert [(made.round, made.figure is None) for made in again.made] == [(0, False)] * 2 + [
        (1, False)
    ] * 2 + [(2, True)]
    tensor = [made.figure for made in again.made if made.arm == "tensor" and made.figure is not None]
    # Two boards, 100 W each, 20 s, 100 steps.
    assert tensor == pytest.approx([40_000.0] * 2)


def test_runs_too_short_for_a_verdict_give_no_figure_to_go_on_with(database: Database) -> None:
    identifier, lease, job = begun(database, spec(measurement=AUTO))
    deliver(database, job, [*job.started(), *job.run(job.assignment.runs[0], Figures(window_s=0.2))])
    leases.begin_attempt(database, lease, reason=Reason.WORKER_LOST)
    (made,) = assignments.assignment(database, identifier).made
    assert made.figure is None


def test_rounds_for_another_precision_can_be_asked_for(database: Database) -> None:
    identifier = ran(database, spec(measurement={"rounds": 5}))
    stored = comparisons.compare(database, identifier)
    asked = comparisons.compare(database, identifier, precision=0.001)
    assert (stored.precision, asked.precision) == (0.02, 0.001)
    # All rounds gave the same, so three are enough for anything.
    assert asked.arms[0].primary.rounds_for_precision == 3
