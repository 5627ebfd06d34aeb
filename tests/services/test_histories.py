"""Histories: metric points, power in buckets, the log; the same answers from samples and from blocks."""

from datetime import timedelta

import pytest
from sqlalchemy import select

from phantom_core.protocol import MetricPoint, Metrics, PowerSamples
from services import histories, power_history, run_windows
from services.database import Database
from services.errors import NotFound, QueryError
from services.tables import Window
from services.views import EventView, PowerSeries
from tests.services.simulated_job import HOST, Figures, SimulatedJob, begun, deliver, ran, uuid


def points(database: Database, job: SimulatedJob, steps: list[int], **changes: object) -> str:
    """Sends points of one metric, two to an event."""
    run = job.assignment.runs[0]
    for start in range(0, len(steps), 2):
        told = tuple(
            MetricPoint(step=step, name="loss", value=float(step)) for step in steps[start : start + 2]
        )
        payload = Metrics(points=told)
        deliver(database, job, [job.rank0.event(run.run_id, run.attempt, job.at(), payload)])
    return run.run_id


def test_a_history_is_in_order_of_step_however_it_came(database: Database) -> None:
    _, _, job = begun(database)
    run = points(database, job, [5, 3, 4, 0, 2, 1])
    (series,) = histories.metric_history(database, run).series
    assert (series.name, series.step) == ("loss", (0, 1, 2, 3, 4, 5))
    assert series.value == (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)


def test_a_value_told_twice_at_one_step_is_kept_twice(database: Database) -> None:
    _, _, job = begun(database)
    run = points(database, job, [1, 2, 1, 2])
    (series,) = histories.metric_history(database, run).series
    assert series.step == (1, 1, 2, 2)


def test_a_thinned_history_keeps_its_ends(database: Database) -> None:
    _, _, job = begun(database)
    run = points(database, job, list(range(100)))
    (series,) = histories.metric_history(database, run, max_points=7).series
    assert len(series.step) == 7
    assert (series.step[0], series.step[-1]) == (0, 99)
    with pytest.raises(QueryError, match="max_points = 1"):
        histories.metric_history(database, run, max_points=1)


def test_names_choose_among_metrics(database: Database) -> None:
    ran(database)
    identifier = ran(database)
    run = f"{identifier}-r000-a00"
    every = histories.metric_history(database, run)
    assert [series.name for series in every.series] == ["evaluation_loss", "train_loss"]
    one = histories.metric_history(database, run, names=["train_loss", "nothing"])
    assert [series.name for series in one.series] == ["train_loss"]
    with pytest.raises(NotFound):
        histories.metric_history(database, "exp-nothing-r000-a00")


def varied(database: Database, seconds: int = 60) -> tuple[str, SimulatedJob]:
    """A run whose first board's power rises by a watt each tenth of a second, with failed reads between."""
    _, _, job = begun(database)
    run = job.assignment.runs[0]
    deliver(database, job, job.started())
    began, count = job.clock_s + 1.0, seconds * 10
    events = [
        event
        for event in job.run(run, Figures(window_s=seconds, windows=1))
        if not isinstance(event.payload, PowerSamples)
    ]
    for first in range(0, count, 20):
        numbers = range(first, min(first + 20, count))
        payload = PowerSamples(
            host=HOST,
            device_uuid=uuid(0),
            method="instant",
            at=tuple(job.at() + timedelta(seconds=number / 10) for number in numbers),
            monotonic_s=tuple(began + number / 10 for number in numbers),
            power_mw=tuple(None if number % 10 == 7 else 1_000.0 * number for number in numbers),
        )
        events.append(job.sampler.event(job.assignment.experiment_id, 1, job.at(), payload))
    deliver(database, job, events)
    return run.run_id, job


def of_board(database: Database, run: str, max_points: int) -> PowerSeries:
    """The first board's series."""
    (series,) = power_history.power_history(database, run, max_points=max_points).series
    assert series.device_uuid == uuid(0)
    return series


def test_few_samples_are_shown_as_they_are(database: Database) -> None:
    run, _ = varied(database)
    series = of_board(database, run, 2_000)
    assert (len(series.at), series.sample_count, series.bucket_s) == (600, 600, None)
    assert series.power_mw[:9] == (0, 1_000, 2_000, 3_000, 4_000, 5_000, 6_000, None, 8_000)
    assert series.charged


def test_many_samples_are_merged_into_equal_buckets(database: Database) -> None:
    run, _ = varied(database)
    series = of_board(database, run, 61)
    assert series.bucket_s == pytest.approx(1.0)
    assert (len(series.at), series.sample_count) == (60, 600)
    # Bucket by bucket: set-up lasts a second, then ten samples a second, of which the eighth failed.
    assert series.least_mw[3] == 30_000.0
    assert series.greatest_mw[3] == 39_000.0
    assert series.power_mw[3] == pytest.approx((sum(range(30, 40)) - 37) * 1_000 / 9)


def test_very_many_samples_are_merged_by_the_database_with_the_same_ends(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = varied(database)
    exact = of_board(database, run, 61)
    monkeypatch.setattr(power_history, "DECODED", 10)
    merged = of_board(database, run, 13)
    assert merged.sample_count == exact.sample_count
    assert 8 <= len(merged.at) <= 13
    assert list(merged.at) == sorted(merged.at)
    least = [mw for mw in merged.least_mw if mw is not None]
    greatest = [mw for mw in merged.greatest_mw if mw is not None]
    assert (min(least), max(greatest)) == (0.0, 599_000.0)
    assert least == sorted(least)


def test_a_bucket_of_failed_reads_only_is_unknown(database: Database) -> None:
    _, _, job = begun(database)
    run = job.assignment.runs[0]
    deliver(database, job, job.started())
    figures = Figures(windows=1)
    for event in job.run(run, figures):
        payload = event.payload
        if isinstance(payload, PowerSamples):
            failed = tuple(None for _ in payload.power_mw)
            event = event.model_copy(update={"payload": payload.model_copy(update={"power_mw": failed})})
        deliver(database, job, [event])
    for series in power_history.power_history(database, run.run_id, max_points=10).series:
        assert set(series.power_mw) == set(series.least_mw) == {None}


def test_power_shows_the_windows_beneath_it(database: Database) -> None:
    identifier = ran(database)
    history = power_history.power_history(database, f"{identifier}-r000-a00")
    assert [(window.phase, window.number) for window in history.windows] == [
        ("setup", 0),
        ("setup", 0),
        ("training", 0),
        ("training", 0),
        ("training", 1),
        ("training", 1),
    ]
    window = history.windows[2]
    assert (window.energy_mj, window.sample_count) == (1_000_000.0, 101)
    assert window.integral_mj == pytest.approx(1_000_000.0)


def test_windows_that_no_plot_could_tell_apart_are_merged(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, job = begun(database)
    run = job.assignment.runs[0].run_id
    figures = Figures(windows=7, steps=70)
    deliver(database, job, [*job.started(), *job.run(job.assignment.runs[0], figures)])
    with database.write() as session:
        # Of the second board: one window without energy, one with a flag of its own.
        last = session.scalars(select(Window).where(Window.phase == "training").order_by(Window.key)).all()
        odd = [window for window in last if window.device_key == last[-1].device_key]
        odd[0].energy_mj, odd[0].reason = None, "counter lost"
        odd[4].flags = ["company"]
    exact = power_history.power_history(database, run).windows
    assert {window.merged for window in exact} == {1}
    monkeypatch.setattr(run_windows, "MOST_WINDOWS", 6)
    merged = power_history.power_history(database, run).windows
    assert [(window.phase, window.number, window.merged) for window in merged] == [
        (phase, number, count)
        for phase, number, count in (
            ("setup", 0, 1),
            ("training", 0, 3),
            ("training", 3, 3),
            ("training", 6, 1),
        )
        for _ in range(2)
    ]
    for name in ("steps", "samples", "sample_count"):
        assert sum(getattr(each, name) for each in merged) == sum(getattr(each, name) for each in exact)
    training = [window for window in merged if window.phase == "training"]
    lost = [window for window in training if window.energy_mj is None]
    assert [(window.number, window.reason) for window in lost] == [(0, "counter lost")]
    known = next(window for window in training if window.merged == 3 and window.energy_mj is not None)
    assert known.energy_mj == pytest.approx(3_000_000.0)
    assert known.duration_s == pytest.approx(30.0, abs=0.1)
    assert [window.number for window in training if "company" in window.flags] == [3]
    assert [window.started_at for window in merged] == sorted(window.started_at for window in merged)


def test_a_run_that_has_not_begun_has_no_power(database: Database) -> None:
    _, _, job = begun(database)
    history = power_history.power_history(database, job.assignment.runs[0].run_id)
    assert (history.series, history.windows) == ((), ())


@pytest.mark.parametrize("points", [1, 20_001])
def test_points_out_of_range_are_refused(database: Database, points: int) -> None:
    with pytest.raises(QueryError, match="between 2 and 20000"):
        power_history.power_history(database, "any", max_points=points)


def test_the_log_is_read_on_from_where_one_stopped(database: Database) -> None:
    identifier = ran(database)
    whole = histories.events_after(database, identifier)
    seen: list[EventView] = []
    after = 0
    while part := histories.events_after(database, identifier, after=after, limit=7):
        seen += part
        after = part[-1].key
    assert tuple(seen) == whole
    with pytest.raises(NotFound):
        histories.events_after(database, "exp-nothing")
