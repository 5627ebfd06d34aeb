"""A run that went on from an earlier attempt's checkpoint: its figures are of both, its attempts' of each."""

from collections.abc import Iterator

import pytest

from phantom_core.protocol import Carried, Event, MetricPoint, Metrics, Reason, RunFinished, Window
from services import assignments, histories, leases, runs
from services.database import Database
from tests.services.simulated_job import Figures, SimulatedJob, begun, deliver
from tests.services.test_attempt_energy import until_cut_off
from tests.services.test_comparisons import under_a_power_limit

SETUP_MJ, WINDOW_MJ = 2 * 50_000.0, 2 * 1_000_000.0
"""Set-up, and one training window, on both boards."""


def from_the_second_window(job: SimulatedJob, loss: float) -> Iterator[Event]:
    """The run's second half, as an attempt says it that goes on after the first window, 50 of 100 steps."""
    for event in job.run(job.assignment.runs[0], Figures(loss=loss)):
        match event.payload:
            case Window(phase="training", index=0):
                continue
            case Metrics(points=points) if points[0].step == 50:
                continue
            case RunFinished() as finished:
                carried = (Carried(attempt=1, windows=1, steps=50),)
                yield event.model_copy(update={"payload": finished.model_copy(update={"carried": carried})})
            case _:
                yield event


def resumed(database: Database, *, lost: str | None = None, power_limit_mw: float | None = None) -> str:
    """A run cut off in its second window, and made from there by the next attempt; the id of the run."""
    identifier, lease, job = begun(database)
    told, later = until_cut_off(job)
    kept = [
        event
        for event in [*told, *later]
        if not (
            isinstance(event.payload, Window) and event.payload.phase == "training" and event.source == lost
        )
    ]
    at_the_checkpoint = MetricPoint(step=50, name="evaluation_loss", value=0.5)
    run = job.assignment.runs[0]
    metrics = job.rank0.event(run.run_id, run.attempt, job.at(), Metrics(points=(at_the_checkpoint,)))
    deliver(database, job, [*kept, metrics])
    leases.begin_attempt(database, lease, reason=Reason.WORKER_LOST, message="a rank was killed")
    again = SimulatedJob(assignments.assignment(database, identifier), clock_s=5_000.0)
    started = again.started()
    deliver(
        database, again, started if power_limit_mw is None else under_a_power_limit(started, power_limit_mw)
    )
    deliver(database, again, from_the_second_window(again, loss=0.25))
    return run.run_id


def test_steps_time_and_energy_are_of_the_windows_that_count_whichever_attempt_made_them(
    database: Database,
) -> None:
    run = runs.get(database, resumed(database))
    assert run.state == "succeeded"
    assert run.energy_training_mj == 2 * WINDOW_MJ
    assert run.energy_per_step_mj == 2 * WINDOW_MJ / 100
    assert run.training_s == 20.0
    assert run.flags is not None
    assert "resumed" in run.flags


@pytest.mark.parametrize("power_limit_mw", [None, 123_000.0])
def test_a_run_that_went_on_under_another_limit_is_compared_with_none(
    database: Database, power_limit_mw: float | None
) -> None:
    run = runs.get(database, resumed(database, power_limit_mw=power_limit_mw))
    assert run.flags is not None
    assert ("clocks_differ" in run.flags) == (power_limit_mw is not None)


def test_what_each_attempt_used_stays_apart(database: Database) -> None:
    """The first one's five seconds after the checkpoint are lost, and are its own."""
    first, second = runs.get(database, resumed(database)).attempts
    assert first.energy_mj == pytest.approx(SETUP_MJ + WINDOW_MJ)
    assert first.energy_interrupted_mj == pytest.approx(2 * 500_000)
    assert second.energy_mj == pytest.approx(SETUP_MJ + WINDOW_MJ)
    assert second.energy_interrupted_mj is None


def test_a_window_that_never_arrived_makes_the_energy_unknown_and_never_too_low(database: Database) -> None:
    run = runs.get(database, resumed(database, lost="rank-1"))
    assert run.energy_training_mj is None
    assert run.energy_reason is not None
    assert run.training_s == 20.0


def test_the_history_of_the_last_attempt_has_what_it_went_on_from(database: Database) -> None:
    run_id = resumed(database)
    (evaluation, _train) = histories.metric_history(database, run_id).series
    assert (evaluation.step, evaluation.value) == ((50, 100), (0.5, 0.25))
    (first,) = histories.metric_history(database, run_id, attempt=1).series
    assert (first.step, first.value) == ((50,), (0.5,))
