"""Ingest: what each event changes, what is kept without changing anything, and what is refused."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select

from phantom_core.protocol import (
    Alive,
    BoardState,
    BoardStates,
    Event,
    EventBatch,
    ExperimentFinished,
    ExperimentStarted,
    MetricPoint,
    Metrics,
    Payload,
    PowerSamples,
    Progress,
    Reason,
    RunFinished,
    RunStarted,
    Window,
)
from services import comparisons, experiments, histories, ingest, leases, power_history, runs
from services.database import Database
from services.errors import NotFound
from services.states import ExperimentState
from services.tables import Event as EventRow
from services.tables import Experiment, MetricBlock, PowerSample
from services.tables import Window as WindowRow
from tests.services.simulated_job import HOST, Figures, SimulatedJob, begun, deliver, spec, uuid

SOON = datetime(2026, 1, 2, tzinfo=UTC)


def event(subject: str, payload: Payload, *, attempt: int = 1, seq: int = 0, source: str = "rank-9") -> Event:
    """One event from a source of its own."""
    return Event(subject_id=subject, attempt=attempt, source=source, seq=seq, at=SOON, payload=payload)


def window(**changes: object) -> Window:
    """A sound training window."""
    values = {
        "phase": "training",
        "index": 0,
        "host": HOST,
        "device_uuid": uuid(0),
        "charged": True,
        "started_at": SOON,
        "started_monotonic_s": 10.0,
        "duration_s": 1.0,
        "steps": 1,
        "energy_mj": 5.0,
        "method": "nvml.counter",
        "scope": "gpu",
    }
    return Window.model_validate(values | changes)


def note_of(database: Database, subject: str) -> str | None:
    """The note of the last entry about a subject that `rank-9` made."""
    with database.read() as session:
        return session.scalars(
            select(EventRow.note)
            .where(EventRow.subject_id == subject, EventRow.source == "rank-9")
            .order_by(EventRow.key.desc())
        ).first()


def test_a_whole_job_becomes_a_finished_experiment(database: Database) -> None:
    identifier, lease, job = begun(database)
    result = deliver(database, job, job.everything())
    assert (result.duplicates, result.rejected) == (0, {})
    found = experiments.get(database, identifier)
    assert (found.state, found.runs) == ("succeeded", {"succeeded": 6})
    assert {device.uuid for device in found.devices} == {uuid(0), uuid(1)}
    assert {(device.clock_limit_mhz, device.memory_clock_limit_mhz) for device in found.devices} == {
        (1_980, 2_619)
    }
    assert found.environment is not None
    assert found.environment["backend"] == "nccl"
    assert found.first_run_at is not None
    assert not leases.renew(database, lease, 10)


def test_a_batch_sent_again_changes_nothing(database: Database) -> None:
    identifier, _, job = begun(database)
    events = job.everything()
    first = deliver(database, job, events)
    before = experiments.get(database, identifier)
    again = deliver(database, job, events)
    assert (again.accepted, again.duplicates) == (0, first.accepted)
    assert experiments.get(database, identifier).version == before.version


def test_the_worker_group_s_first_word_makes_it_running(database: Database) -> None:
    identifier, _, job = begun(database)
    assert experiments.get(database, identifier).state == "starting"
    deliver(database, job, job.started())
    assert experiments.get(database, identifier).state == "running"


def test_runs_begin_and_end_as_told(database: Database) -> None:
    identifier, _, job = begun(database)
    first = job.assignment.runs[0]
    events = list(job.run(first, Figures(outcome="diverged", loss=math.nan)))
    deliver(database, job, [*job.started(), events[0]])
    assert runs.get(database, first.run_id).state == "running"
    deliver(database, job, events[1:])
    found = runs.get(database, first.run_id)
    assert found.state == "diverged"
    assert found.final_evaluation_loss is None
    assert found.non_finite == {"final_evaluation_loss": "nan", "final_train_loss": "nan"}
    assert found.energy_training_mj == 4_000_000.0
    assert experiments.get(database, identifier).state == "running"


def test_metrics_that_are_not_finite_are_kept_as_what_they_are(database: Database) -> None:
    _, _, job = begun(database)
    run = job.assignment.runs[0].run_id
    values = [1.5, math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308]
    points = tuple(MetricPoint(step=step, name="loss", value=value) for step, value in enumerate(values))
    deliver(database, job, [event(run, Metrics(points=points))])
    (series,) = histories.metric_history(database, run).series
    assert series.value == (1.5, None, None, None, 5e-324, 1.7976931348623157e308)
    assert series.non_finite == {1: "nan", 2: "inf", 3: "-inf"}


def test_a_figure_that_is_not_finite_is_unknown_with_a_reason(database: Database) -> None:
    _, _, job = begun(database)
    run = job.assignment.runs[0].run_id
    deliver(database, job, [event(run, window(energy_mj=math.nan, uncertainty_mj=math.inf))])
    (found,) = power_history.power_history(database, run).windows
    assert (found.energy_mj, found.uncertainty_mj) == (None, None)
    assert found.reason == "the meter said nan"


def test_progress_is_the_latest_whatever_comes_last(database: Database) -> None:
    identifier, _, job = begun(database)
    lines = [
        Event(
            subject_id=identifier,
            attempt=1,
            source="rank-0",
            seq=number,
            at=SOON + timedelta(seconds=number),
            payload=Progress(message=f"round {number}", done=number, total=6),
        )
        for number in range(3)
    ]
    for line in (lines[2], lines[0], lines[1]):
        deliver(database, job, [line])
    assert experiments.get(database, identifier).progress == "round 2 (2 of 6 runs)"


def test_the_job_s_last_word_waits_for_its_runs(database: Database) -> None:
    identifier, _, job = begun(database)
    events = job.everything()
    deliver(database, job, [events[-1], *events[:-10]])
    assert experiments.get(database, identifier).state == "running"
    deliver(database, job, events[-10:-1])
    assert experiments.get(database, identifier).state == "succeeded"


def test_a_job_that_gives_up_leaves_the_end_to_its_dispatcher(database: Database) -> None:
    identifier, lease, job = begun(database)
    gives_up = ExperimentFinished(outcome="failed", reason=Reason.WORKER_LOST, message="rank 1 died")
    deliver(database, job, [*job.started(), event(identifier, gives_up, source="driver")])
    assert experiments.get(database, identifier).state == "running"
    view = leases.follow(database, lease)
    assert (view.reported_outcome, view.reported_reason) == ("failed", "worker_lost")
    assert (view.reported_message, view.runs_left) == ("rank 1 died", 6)
    leases.finish(database, lease, ExperimentState.FAILED, view.reported_reason, view.reported_message)
    assert experiments.get(database, identifier).runs == {"cancelled": 6}


def test_a_job_whose_runs_all_failed_has_not_succeeded(database: Database) -> None:
    identifier, _, job = begun(database)
    figures = Figures(outcome="failed")
    deliver(database, job, job.everything({"tensor": figures, "phantom": figures}))
    found = experiments.get(database, identifier)
    assert (found.state, found.reason) == ("failed", "all_runs_failed")


def test_terminal_is_final_and_late_figures_are_kept(database: Database) -> None:
    identifier, lease, job = begun(database)
    first = job.assignment.runs[0]
    events = list(job.run(first))
    deliver(database, job, [*job.started(), *events[:4]])
    leases.finish(database, lease, ExperimentState.CANCELLED)
    result = deliver(database, job, events[4:])
    assert result.accepted == len(events) - 4
    found = runs.get(database, first.run_id)
    assert (found.state, found.reason) == ("cancelled", "cancelled_by_user")
    assert (found.steps, found.energy_training_mj) == (100, 4_000_000.0)
    assert found.attempts[0].energy_mj == 4_100_000.0
    notes = {entry.kind: entry.note for entry in histories.events_after(database, identifier) if entry.note}
    assert notes == {
        "run_finished": "the run had ended as cancelled; its figures are kept, its state is final"
    }


def test_late_windows_work_the_summary_and_the_comparison_out_anew(database: Database) -> None:
    identifier, _, job = begun(database)
    events = job.everything({"phantom": Figures(power_mw=60_000.0)})
    late = [each for each in events if isinstance(each.payload, Window) and each.source == "rank-1"]
    deliver(database, job, [each for each in events if each not in late])
    assert experiments.get(database, identifier).state == "succeeded"
    before = comparisons.compare(database, identifier).arms[0].primary
    assert before.verdict == "not_comparable"
    assert "has not come from all boards" in before.excluded[0].reason
    deliver(database, job, late)
    after = comparisons.compare(database, identifier).arms[0].primary
    assert after.verdict == "saves"
    assert after.ratio == pytest.approx(0.6)
    assert experiments.get(database, identifier).verdicts[0].verdict == "saves"


def test_events_of_unknown_runs_are_kept_whole_and_change_nothing(database: Database) -> None:
    identifier, _, job = begun(database)
    stranger = f"{identifier}-r999-a99"
    told = [event(stranger, RunStarted(ranks=2)), event(stranger, window(), seq=1)]
    assert deliver(database, job, told).accepted == 2
    assert note_of(database, stranger) == "the experiment has no such run"
    kept = [entry for entry in histories.events_after(database, identifier) if entry.subject_id == stranger]
    assert all(entry.payload for entry in kept)
    with database.read() as session:
        assert session.execute(select(func.count()).select_from(WindowRow)).scalar_one() == 0


def test_events_of_an_attempt_that_was_never_assigned_are_kept_whole(database: Database) -> None:
    identifier, _, job = begun(database)
    run = job.assignment.runs[0].run_id
    deliver(
        database, job, [event(run, RunStarted(ranks=2), attempt=7), event(identifier, window(), attempt=3)]
    )
    assert note_of(database, run) == "attempt 7 was never assigned"
    assert note_of(database, identifier) == "attempt 3 has not begun"
    assert runs.get(database, run).state == "queued"


def test_a_superseded_attempt_keeps_its_figures_and_changes_no_state(database: Database) -> None:
    from services import assignments

    identifier, lease, job = begun(database)
    first = job.assignment.runs[0]
    events = list(job.run(first))
    deliver(database, job, [*job.started(), events[0]])
    leases.begin_attempt(database, lease, reason=Reason.WORKER_LOST)
    again = assignments.assignment(database, identifier)
    deliver(database, job, [*events[1:], *job.finished()])
    found = runs.get(database, first.run_id)
    assert (found.state, found.attempt, found.steps) == ("queued", 2, None)
    assert found.attempts[0].energy_mj == 4_100_000.0
    assert (found.attempts[0].outcome, found.attempts[0].reason) == ("failed", "worker_lost")
    assert experiments.get(database, identifier).state == "leased"
    second = SimulatedJob(again, clock_s=9_000.0)
    deliver(database, second, [*second.started(), *second.run(again.runs[0], Figures(power_mw=10_000.0))])
    found = runs.get(database, first.run_id)
    assert (found.state, found.energy_training_mj) == ("succeeded", 400_000.0)
    assert [attempt.energy_mj for attempt in found.attempts] == [4_100_000.0, 410_000.0]
    assert len(histories.metric_history(database, first.run_id).series[0].step) == 2
    assert histories.metric_history(database, first.run_id, attempt=1).series[0].energy_mj[0] == 2_000_000.0


def test_a_run_s_end_told_twice_counts_once(database: Database) -> None:
    _, _, job = begun(database)
    run = job.assignment.runs[0]
    deliver(database, job, [*job.started(), *job.run(run)])
    deliver(database, job, [event(run.run_id, RunFinished(outcome="failed", steps=1, samples=1))])
    found = runs.get(database, run.run_id)
    assert (found.state, found.steps) == ("succeeded", 100)
    assert note_of(database, run.run_id) == "this attempt's end was told before; nothing changed"


def test_one_experiment_s_job_can_not_speak_for_another(database: Database) -> None:
    identifier, _, job = begun(database)
    other, _, other_job = begun(database)
    theirs = other_job.assignment.runs[0].run_id
    result = deliver(database, job, [event(theirs, RunStarted(ranks=2)), event(other, window())])
    assert result.accepted == 0
    assert result.rejected == {"its subject belongs to another experiment": 2}
    assert runs.get(database, theirs).state == "queued"
    assert identifier != other


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (window(duration_s=math.nan), "duration or monotonic time"),
        (window(duration_s=-1.0), "duration is negative"),
        (window(duration_s=1.1e9), "duration or monotonic time"),
        (window(phase="evaluation", duration_s=3e11), "duration or monotonic time"),
        (window(duration_s=1e300), "duration or monotonic time"),
        (window(started_monotonic_s=math.inf), "duration or monotonic time"),
        (window(started_monotonic_s=-1e308), "duration or monotonic time"),
        (window(index=2**31), "out of range"),
        (window(steps=-1), "out of range"),
        (window(steps=2**63), "whole number in it is too large"),
        (window(started_at=datetime(9999, 12, 31, tzinfo=UTC)), "time in it is out of range"),
        (Metrics(points=(MetricPoint(step=2**63, name="a", value=1.0),)), "whole number in it is too large"),
        (
            PowerSamples(
                host="h",
                device_uuid="u",
                method="instant",
                at=(SOON,),
                monotonic_s=(1.0, 2.0),
                power_mw=(1.0,),
            ),
            "must be equally long",
        ),
        (
            PowerSamples(host="h", device_uuid="u", method="instant", at=(), monotonic_s=(), power_mw=()),
            "must be equally long",
        ),
        (
            PowerSamples(
                host="h",
                device_uuid="u",
                method="instant",
                at=(SOON,),
                monotonic_s=(math.nan,),
                power_mw=(1.0,),
            ),
            "duration or monotonic time",
        ),
        (BoardStates(host="h", device_uuid="u", states=()), "holds no states"),
        (RunFinished(outcome="succeeded", steps=2**70, samples=1), "whole number in it is too large"),
    ],
)
def test_what_no_column_can_hold_is_refused_with_a_reason(
    database: Database, payload: Payload, reason: str
) -> None:
    _, _, job = begun(database)
    run = job.assignment.runs[0].run_id
    result = deliver(database, job, [event(run, payload), event(run, RunStarted(ranks=2), seq=1)])
    (said,) = result.rejected
    assert reason in said
    assert result.accepted == 1


def test_a_subject_that_no_database_takes_is_refused(database: Database) -> None:
    identifier, _, job = begun(database)
    told = [
        event(f"{identifier}-\x00", RunStarted(ranks=2)),
        event(f"{identifier}-\u2028é😀", RunStarted(ranks=2)),
    ]
    result = deliver(database, job, told)
    assert result.rejected == {"its subject is no id": 1}
    assert result.accepted == 1
    assert note_of(database, told[1].subject_id) == "the experiment has no such run"


def test_the_service_s_own_voice_can_not_be_borrowed(database: Database) -> None:
    identifier, _, job = begun(database)
    told = event(identifier, Progress(message="x", done=0, total=1), source="service", seq=10**6)
    assert deliver(database, job, [told]).rejected == {"the source `service` is the service's own": 1}


def test_text_that_a_database_does_not_take_is_mended(database: Database) -> None:
    _, _, job = begun(database)
    run = job.assignment.runs[0].run_id
    message = "bad\x00byte " + "x" * 10_000
    deliver(database, job, [event(run, RunFinished(outcome="failed", message=message, steps=0, samples=0))])
    stored = runs.get(database, run).message
    assert stored is not None
    assert stored.startswith("bad\ufffdbyte xxx")
    assert len(stored) == 4_000


def test_very_long_names_of_devices_fit(database: Database) -> None:
    identifier, _, job = begun(database)
    deliver(database, job, [event(identifier, window(host="h" * 3_000, device_uuid="u" * 3_000))])
    assert {len(device.uuid) for device in experiments.get(database, identifier).devices} == {255}


def test_series_are_stored_once_and_not_in_the_log(database: Database) -> None:
    identifier, _, job = begun(database)
    deliver(database, job, job.everything())
    for entry in histories.events_after(database, identifier):
        is_series = entry.kind in {"window", "metrics", "power_samples", "board_states"}
        assert is_series == (entry.payload is None)
    with database.read() as session:
        assert session.execute(select(func.sum(MetricBlock.point_count))).scalar_one() == 6 * 2 * 2
        assert session.execute(select(func.sum(PowerSample.sample_count))).scalar_one() == 6 * 2 * 2 * 101


def test_states_of_a_board_flag_the_windows_they_lie_in(database: Database) -> None:
    _, _, job = begun(database)
    deliver(database, job, job.started())
    run = job.assignment.runs[0]
    began_s = job.clock_s
    states = tuple(
        BoardState(
            at=SOON,
            monotonic_s=began_s + offset,
            throttle_reasons=("hw_thermal_slowdown",) if offset < 9 else (),
            process_ids=(17,),
        )
        for offset in range(30)
    )
    deliver(database, job, job.run(run))
    told = BoardStates(host=HOST, device_uuid=uuid(0), states=states)
    deliver(database, job, [event(job.assignment.experiment_id, told)])
    assert runs.get(database, run.run_id).flags == ("throttled",)
    flagged = [
        (each.phase, each.number)
        for each in power_history.power_history(database, run.run_id).windows
        if "throttled" in each.flags
    ]
    assert flagged == [("setup", 0), ("training", 0)]


def test_company_on_a_board_is_flagged(database: Database) -> None:
    _, _, job = begun(database)
    deliver(database, job, job.started())
    run = job.assignment.runs[0]
    states = tuple(
        BoardState(at=SOON, monotonic_s=job.clock_s + offset, throttle_reasons=(), process_ids=(17, 4_711))
        for offset in range(30)
    )
    deliver(database, job, job.run(run))
    told = BoardStates(host=HOST, device_uuid=uuid(1), states=states)
    deliver(database, job, [event(job.assignment.experiment_id, told)])
    assert runs.get(database, run.run_id).flags == ("board_shared",)


@pytest.mark.parametrize(
    ("changed_limit", "flags"),
    [
        ({}, ()),
        ({"power_limit_mw": 699_000.0}, ()),
        ({"power_limit_mw": 500_000.0}, ("clocks_differ",)),
        ({"clock_limit_mhz": 1_965.0}, ("clocks_differ",)),
        ({"memory_clock_limit_mhz": 1_593.0}, ("clocks_differ",)),
        ({"clock_limit_mhz": None, "memory_clock_limit_mhz": None}, ()),
    ],
)
def test_a_limit_that_is_changed_in_mid_run_is_flagged_and_its_round_is_not_compared(
    sqlite_database: Database, changed_limit: dict[str, float | None], flags: tuple[str, ...]
) -> None:
    limits = {"power_limit_mw": 700_000.0, "clock_limit_mhz": 1_980.0, "memory_clock_limit_mhz": 2_619.0}
    identifier, _, job = begun(sqlite_database)
    deliver(sqlite_database, job, job.started())
    for run in job.assignment.runs:
        began_s = job.clock_s
        deliver(sqlite_database, job, job.run(run))
        is_changed = run.round == 1 and run.arm == "phantom"
        states = tuple(
            BoardState(
                at=SOON,
                monotonic_s=began_s + offset,
                throttle_reasons=(),
                process_ids=(17,),
                **(limits | (changed_limit if is_changed and offset > 10 else {})),
            )
            for offset in range(22)
        )
        told = BoardStates(host=HOST, device_uuid=uuid(0), states=states)
        source = f"sampler-{run.round}-{run.arm}"
        deliver(sqlite_database, job, [event(job.assignment.experiment_id, told, source=source)])
    changed = next(run for run in job.assignment.runs if run.round == 1 and run.arm == "phantom")
    assert runs.get(sqlite_database, changed.run_id).flags == flags
    primary = comparisons.compare(sqlite_database, identifier).arms[0].primary
    assert primary.blocking_flags == flags
    assert [each.round for each in primary.excluded] == ([1] if flags else [])


@pytest.mark.parametrize(
    ("on_board", "flags"),
    [((17,), ()), ((18,), ("board_shared",)), ((), ("company_unknown",)), ((17, 18), ("board_shared",))],
)
def test_ranks_that_tell_their_process_are_known_on_the_board(
    sqlite_database: Database, on_board: tuple[int, ...], flags: tuple[str, ...]
) -> None:
    _, _, job = begun(sqlite_database)
    started = []
    for told in job.started():
        if isinstance(told.payload, ExperimentStarted):
            ranks = tuple(r.model_copy(update={"process_id": 16 + r.rank}) for r in told.payload.ranks)
            told = told.model_copy(update={"payload": told.payload.model_copy(update={"ranks": ranks})})
        started.append(told)
    deliver(sqlite_database, job, started)
    run = job.assignment.runs[0]
    states = tuple(
        BoardState(at=SOON, monotonic_s=job.clock_s + offset, throttle_reasons=(), process_ids=on_board)
        for offset in range(30)
    )
    deliver(sqlite_database, job, job.run(run))
    seen = BoardStates(host=HOST, device_uuid=uuid(1), states=states)
    deliver(sqlite_database, job, [event(job.assignment.experiment_id, seen)])
    assert runs.get(sqlite_database, run.run_id).flags == flags


def test_a_batch_of_nobody_s_experiment_is_not_found(database: Database) -> None:
    with pytest.raises(NotFound):
        ingest.ingest(database, EventBatch(experiment_id="exp-nothing", events=()))


def test_an_experiment_that_shall_be_deleted_goes_with_its_last_event(database: Database) -> None:
    identifier, _, job = begun(database)
    events = job.everything()
    deliver(database, job, events[:-1])
    assert not experiments.request_delete(database, identifier)
    deliver(database, job, events[-1:])
    with pytest.raises(NotFound):
        experiments.get(database, identifier)
    with pytest.raises(NotFound):
        deliver(database, job, events)


def test_many_runs_in_many_batches_leave_no_run_behind(database: Database) -> None:
    identifier, _, job = begun(database, spec(measurement={"rounds": 10}))
    events = job.everything()
    for start in range(0, len(events), 50):
        deliver(database, job, events[start : start + 50])
    assert experiments.get(database, identifier).runs == {"succeeded": 20}


@pytest.mark.parametrize("name", ["null", "nan", "a", "x" * 64])
def test_any_allowed_name_of_a_metric_is_kept(database: Database, name: str) -> None:
    _, _, job = begun(database)
    run = job.assignment.runs[0].run_id
    point = MetricPoint(step=2**63 - 1, name=name, value=-1e-300, energy_mj=1e300, training_s=0.1 + 0.2)
    deliver(database, job, [event(run, Metrics(points=(point,)))])
    (series,) = histories.metric_history(database, run).series
    assert (series.name, series.step, series.value) == (name, (2**63 - 1,), (-1e-300,))
    assert (series.energy_mj, series.training_s) == ((1e300,), (0.1 + 0.2,))


def test_a_sampler_s_events_are_no_sign_of_life_of_the_ranks(database: Database) -> None:
    """It is a process of its own, which goes on while they hang."""
    identifier, _, job = begun(database)
    deliver(database, job, job.started())

    def heard_at() -> datetime | None:
        with database.read() as session:
            return session.get_one(Experiment, identifier).last_event_at

    before = heard_at()
    run = job.assignment.runs[0]
    samples = [each for each in job.run(run) if isinstance(each.payload, PowerSamples)]
    assert deliver(database, job, samples).accepted == len(samples) > 0
    assert heard_at() == before
    deliver(database, job, [event(identifier, Alive(ranks=2), source="pulse")])
    after = heard_at()
    assert after is not None
    assert before is not None
    assert after > before


def test_every_batch_that_brings_something_raises_the_version_once(database: Database) -> None:
    """Also one that only brings points, for which the experiment's row isn't read; watchers ask by it what is new."""
    identifier, _, job = begun(database)
    deliver(database, job, job.started())
    run = job.assignment.runs[0]

    def version() -> int:
        return experiments.get(database, identifier).version

    def told(*seqs: int) -> list[Event]:
        return [
            event(run.run_id, Metrics(points=(MetricPoint(step=seq, name="loss", value=1.0),)), seq=seq)
            for seq in seqs
        ]

    before = version()
    deliver(database, job, told(0, 1))
    assert version() == before + 1
    deliver(database, job, told(0, 1))
    assert version() == before + 1
    deliver(database, job, told(1, 2))
    assert version() == before + 2
