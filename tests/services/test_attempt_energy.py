"""What attempts have used that were cut off: whole windows by the meter, the rest by samples, told apart."""

from collections.abc import Iterable

import pytest

from phantom_core.protocol import Event, PowerSamples, Reason, Window
from services import assignments, experiments, leases, runs
from services.database import Database
from services.states import ExperimentState
from services.views import AttemptView
from tests.services.simulated_job import SimulatedJob, begun, deliver


def first_attempt(database: Database, job: SimulatedJob) -> AttemptView:
    """The first attempt of the first run."""
    return runs.get(database, job.assignment.runs[0].run_id).attempts[0]


def until_cut_off(job: SimulatedJob, samples_until_s: float = 1_018.0) -> tuple[list[Event], list[Event]]:
    """A first run whose second training window never ended: its events, and those of later samples.

    Idle 1,000-1,002 s, set-up 1,002-1,003 s, training 1,003-1,013 s at 100 W on both boards, cut off after that.
    """
    events = list(job.started())
    ran = list(job.run(job.assignment.runs[0]))
    told, later = [], []
    for event in ran[: _end_of_first_window(ran)]:
        told.append(event)
    for event in ran:
        payload = event.payload
        if isinstance(payload, PowerSamples) and payload.monotonic_s[0] > 1_012.9:
            kept = [n for n, at in enumerate(payload.monotonic_s) if at <= samples_until_s]
            cut = payload.model_copy(
                update={
                    name: tuple(getattr(payload, name)[n] for n in kept)
                    for name in ("at", "monotonic_s", "power_mw")
                }
            )
            later.append(event.model_copy(update={"payload": cut}))
    return events + told, later


def _end_of_first_window(events: Iterable[Event]) -> int:
    """Where the metrics after the first training windows are."""
    return next(n for n, event in enumerate(events) if event.payload.kind == "metrics")


def test_a_rank_that_was_killed_leaves_what_its_attempt_has_used(database: Database) -> None:
    identifier, lease, job = begun(database)
    told, later = until_cut_off(job)
    deliver(database, job, [*told, *later])
    leases.begin_attempt(database, lease, reason=Reason.WORKER_LOST, message="a rank was killed")
    attempt = first_attempt(database, job)
    assert (attempt.outcome, attempt.reason) == ("failed", "worker_lost")
    # Set-up and one training window on two boards; then five seconds of samples at 100 W.
    assert attempt.energy_mj == pytest.approx(2 * 50_000 + 2 * 1_000_000)
    assert attempt.energy_interrupted_mj == pytest.approx(2 * 500_000)
    assert attempt.energy_reason is not None
    assert "cut off" in attempt.energy_reason
    again = SimulatedJob(assignments.assignment(database, identifier), clock_s=5_000.0)
    deliver(database, again, again.everything())
    first, second = runs.get(database, job.assignment.runs[0].run_id).attempts
    assert first == attempt
    assert second.energy_mj == pytest.approx(2 * 50_000 + 4 * 1_000_000)
    assert (second.energy_interrupted_mj, second.energy_reason) == (None, None)
    assert runs.get(database, job.assignment.runs[0].run_id).energy_training_mj == 4_000_000.0


def test_samples_that_come_after_the_end_still_count(database: Database) -> None:
    _, lease, job = begun(database)
    told, later = until_cut_off(job)
    deliver(database, job, told)
    leases.finish(database, lease, ExperimentState.FAILED, Reason.WORKER_LOST)
    attempt = first_attempt(database, job)
    # The samples of the first window reach to its end, and not beyond.
    assert attempt.energy_interrupted_mj is None
    assert attempt.energy_reason == "no power sample came after its last whole window"
    deliver(database, job, later)
    assert first_attempt(database, job).energy_interrupted_mj == pytest.approx(2 * 500_000)


def test_a_cancel_in_mid_run_keeps_what_was_used(database: Database) -> None:
    identifier, lease, job = begun(database)
    told, later = until_cut_off(job)
    deliver(database, job, [*told, *later])
    leases.finish(database, lease, ExperimentState.CANCELLED)
    assert experiments.get(database, identifier).state == "cancelled"
    attempt = first_attempt(database, job)
    assert attempt.energy_interrupted_mj == pytest.approx(2 * 500_000)


def test_what_was_cut_off_in_set_up_is_counted_from_its_beginning(database: Database) -> None:
    _, lease, job = begun(database)
    told, _ = until_cut_off(job)
    started = [event for event in told if event.payload.kind in {"experiment_started", "run_started"}]
    samples = [event for event in told if event.payload.kind == "power_samples"]
    deliver(database, job, [*started, *samples])
    leases.begin_attempt(database, lease)
    attempt = first_attempt(database, job)
    # Set-up began at 1,002 s, the samples at 1,003 s: that second is held at the first sample's power.
    assert attempt.energy_mj is None
    assert attempt.energy_interrupted_mj == pytest.approx(2 * 11 * 100_000)


def test_a_board_that_no_sample_saw_makes_the_rest_unknown(database: Database) -> None:
    _, lease, job = begun(database)
    told, later = until_cut_off(job)
    one_board = [
        event
        for event in later
        if isinstance(event.payload, PowerSamples) and event.payload.device_uuid == "GPU-0"
    ]
    deliver(database, job, [*told, *one_board])
    leases.begin_attempt(database, lease)
    attempt = first_attempt(database, job)
    assert attempt.energy_mj is not None
    assert attempt.energy_interrupted_mj is None


def test_runs_that_never_began_used_nothing_of_their_own(database: Database) -> None:
    _, lease, job = begun(database)
    told, later = until_cut_off(job)
    deliver(database, job, [*told, *later])
    leases.finish(database, lease, ExperimentState.FAILED, Reason.WORKER_LOST)
    (never,) = runs.get(database, job.assignment.runs[1].run_id).attempts
    assert (never.energy_mj, never.energy_interrupted_mj) == (None, None)


def test_windows_that_the_meter_could_not_resolve_are_filled_from_samples_and_said(
    database: Database,
) -> None:
    _, lease, job = begun(database)
    told, _ = until_cut_off(job)
    unread = {"energy_mj": None, "uncertainty_mj": None, "method": None, "scope": None, "reason": "too short"}
    changed = [
        event.model_copy(update={"payload": event.payload.model_copy(update=unread)})
        if isinstance(event.payload, Window) and event.payload.phase == "training"
        else event
        for event in told
    ]
    deliver(database, job, changed)
    leases.begin_attempt(database, lease)
    attempt = first_attempt(database, job)
    assert attempt.energy_mj == pytest.approx(2 * 50_000 + 2 * 1_000_000)
    assert attempt.energy_reason is not None
    assert attempt.energy_reason.startswith("of 2 windows (20 s) that the meter could not resolve")
