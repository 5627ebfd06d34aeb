"""Small power blocks become long ones: no reading and no joule changes, whoever dies or comes late meanwhile."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine, delete, event, func, select, update

from phantom_core.protocol import PowerSamples
from services import deletion, housekeeping, power_history, power_joining, runs
from services.database import Database, now
from services.interrupted import interrupted_energy
from services.mishaps import Mishaps
from services.power_blocks import Readings, joined, unpack
from services.power_joining import MOST_BLOCKS, MOST_READINGS, Block, groups_of, join_all, join_blocks
from services.power_parts import COARSE, FINE, parts_of, unpack_parts
from services.power_rows import LONGEST_JOINED_S, joined_columns
from services.tables import Attempt, Device, Experiment, PowerSample, Run, Window
from services.views import PowerSeries
from services.window_rows import windows_of
from services.window_samples import look
from tests.services.rows import snapshot
from tests.services.simulated_job import HOST, Figures, SimulatedJob, begun, deliver, spec, uuid
from tests.services.test_long_runs import statements

WINDOW_S = 2_000.0
EVERY_S = 0.5
PER_EVENT = 4
ENOUGH = 10_000
"""More joined blocks than any test makes."""


def uneven_power(job: SimulatedJob, began_s: float, until_s: float) -> list[PowerSamples]:
    """Power of both boards in events of two seconds.

    It varies, single reads fail, at times all do, there is a pause of a quarter of an hour and a shorter one, some
    events tell their readings backwards, one board tells an average as well and, now and then, utilisation.
    """
    random = np.random.default_rng(0)
    told = []
    for number in range(int((until_s - began_s) / (PER_EVENT * EVERY_S))):
        start_s = began_s + number * PER_EVENT * EVERY_S
        if 200 < number < 650 or 700 < number < 705:
            continue
        for rank in (0, 1):
            for method in ("instant", "average")[: 1 + rank]:
                offsets = [
                    start_s + EVERY_S * each + 1e-6 * random.integers(900) for each in range(PER_EVENT)
                ]
                if number % 13 == 5:
                    offsets.reverse()
                powers = [
                    None
                    if number % 29 in (7, 8) or random.random() < 0.1
                    else float(random.integers(1, 700_000))
                    for _ in offsets
                ]
                told.append(
                    PowerSamples(
                        host=HOST,
                        device_uuid=uuid(rank),
                        method="average" if method == "average" else "instant",
                        at=tuple(job.at() + timedelta(seconds=each - job.clock_s) for each in offsets),
                        monotonic_s=tuple(offsets),
                        power_mw=tuple(powers),
                        utilization_percent=(50.0, 60.0, 70.0, 80.0) if number % 17 == 0 else (),
                    )
                )
    return told


def made(database: Database, *, ends: bool = True, late: Callable[[int], bool] = lambda _: False) -> str:
    """An experiment of one run with uneven power; `late` events come after all others."""
    arms = [{"name": "tensor", "strategy": "tensor", "world_size": 2}]
    identifier, _, job = begun(database, spec(arms=arms, measurement={"rounds": 1, "sample_rate_hz": 2}))
    events = list(job.started())
    began_s = job.clock_s
    of_run = job.run(job.assignment.runs[0], Figures(window_s=WINDOW_S / 10, windows=10))
    events += [each for each in of_run if not isinstance(each.payload, PowerSamples)]
    power = uneven_power(SimulatedJob(job.assignment, began_s), began_s, began_s + WINDOW_S)
    late_power = [each for number, each in enumerate(power) if late(number)]
    in_time = [each for number, each in enumerate(power) if not late(number)]
    events[-1:-1] = [job.sampler.event(identifier, 1, job.at(), each) for each in [*in_time, *late_power]]
    for first in range(0, len(events), 1_000):
        deliver(database, job, events[first : first + 1_000])
    if ends:
        deliver(database, job, job.finished())
    return identifier


def readings(database: Database) -> dict[tuple[int, str], Readings]:
    """All that is stored, by device and method."""
    with database.read() as session:
        blocks: dict[tuple[int, str], list[Readings]] = {}
        rows = session.scalars(select(PowerSample).order_by(PowerSample.started_monotonic_s, PowerSample.key))
        for row in rows:
            blocks.setdefault((row.device_key, row.method), []).append(unpack(row.readings))
    return {series: joined(each) for series, each in blocks.items()}


def same(first: dict[tuple[int, str], Readings], second: dict[tuple[int, str], Readings]) -> bool:
    """Whether both hold the same, to the bit."""

    def bits(each: Readings) -> list[bytes]:
        # In a block without any, utilisation was not read; joined to one that has it, it is unknown.
        utilization = (
            np.full(len(each.at_us), np.nan) if each.utilization_percent is None else each.utilization_percent
        )
        columns = (each.at_us, each.monotonic_s, each.power_mw, utilization)
        return [column.tobytes() for column in columns]

    return {key: bits(each) for key, each in first.items()} == {
        key: bits(each) for key, each in second.items()
    }


def blocks(database: Database) -> list[tuple[int, int, int]]:
    """Key, readings, and whether it was joined, of each block."""
    with database.read() as session:
        rows = session.execute(
            select(PowerSample.key, PowerSample.sample_count, PowerSample.parts.is_not(None)).order_by(
                PowerSample.key
            )
        )
        return [(key, count, bool(was_joined)) for key, count, was_joined in rows]


@pytest.mark.parametrize(
    "late", [lambda _: False, lambda number: number % 3 == 0, lambda number: 100 < number < 400]
)
def test_every_reading_and_every_figure_of_a_run_stays_to_the_bit(
    database: Database, late: Callable[[int], bool]
) -> None:
    identifier = made(database, late=late)
    before, shown = readings(database), snapshot(database, identifier)
    count = len(blocks(database))
    with database.read() as session:
        assert session.scalars(select(Window.integral_mj).where(Window.integral_mj > 0)).all()
    few = join_all(database, Mishaps(), ENOUGH)
    assert 0 < few < count / 20
    assert len(blocks(database)) == few
    assert all(was_joined for _, _, was_joined in blocks(database))
    assert same(readings(database), before)
    assert snapshot(database, identifier) == shown
    with database.write() as session, statements() as sent:
        experiment = session.get_one(Experiment, identifier)
        look(session, experiment, windows_of(session, session.scalars(select(Attempt)).all()))
    assert not [each for each in sent if each.startswith("UPDATE windows")], (
        "a window looks otherwise than before"
    )
    assert join_all(database, Mishaps(), ENOUGH) == 0


def test_a_curve_that_is_made_of_readings_is_the_same_as_before(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    identifier = made(database)
    monkeypatch.setattr(power_history, "DECODED", ENOUGH)
    run = runs.list_runs(database, identifier).items[0].id
    before = [power_history.power_history(database, run, max_points=points) for points in (50, 20_000)]
    join_all(database, Mishaps(), ENOUGH)
    assert [
        power_history.power_history(database, run, max_points=points) for points in (50, 20_000)
    ] == before


@pytest.mark.parametrize(("points", "each"), [(40, FINE), (2, COARSE)])
def test_a_curve_of_parts_bounds_the_readings_and_has_their_mean(
    database: Database, monkeypatch: pytest.MonkeyPatch, points: int, each: int
) -> None:
    identifier = made(database, late=lambda number: number % 5 == 0)
    run = runs.list_runs(database, identifier).items[0].id
    exact = power_history.power_history(database, run, max_points=20_000)
    join_all(database, Mishaps(), ENOUGH)
    monkeypatch.setattr(power_history, "DECODED", 0)
    curves = power_history.power_history(database, run, max_points=points)
    names = [(series.device_uuid, series.method) for series in exact.series]
    assert [(series.device_uuid, series.method) for series in curves.series] == names
    for series, curve in zip(exact.series, curves.series, strict=True):
        assert curve.sample_count >= series.sample_count
        assert curve.sample_count - series.sample_count <= 2 * each, "only a part at each end reaches further"
        assert 1 < len(curve.at) <= points
        assert list(curve.at) == sorted(curve.at)
        assert curve.bucket_s is not None
        _assert_bounded(series, curve, reach_s=60.0)


def _assert_bounded(series: PowerSeries, curve: PowerSeries, reach_s: float) -> None:
    """Every reading lies between the ends of the buckets that the part it is in may have begun in."""
    assert curve.bucket_s is not None
    ends_at = np.array([at.timestamp() for at in curve.at])
    least = np.array([np.nan if each is None else each for each in curve.least_mw])
    greatest = np.array([np.nan if each is None else each for each in curve.greatest_mw])
    for at, power_mw in zip(series.at, series.power_mw, strict=True):
        if power_mw is None:
            continue
        first = np.searchsorted(ends_at, at.timestamp() - reach_s - curve.bucket_s)
        last = np.searchsorted(ends_at, at.timestamp(), side="right")
        assert np.nanmin(least[first:last]) <= power_mw <= np.nanmax(greatest[first:last])
    known = [each for each in series.power_mw if each is not None]
    assert min(known) >= np.nanmin(least)
    assert max(known) <= np.nanmax(greatest)
    if len(curve.at) > 2:
        assert np.nanmin(least) >= 0
        assert np.mean([each for each in curve.power_mw if each is not None]) == pytest.approx(
            np.mean(known), rel=0.1
        )


def test_parts_say_what_is_in_their_readings() -> None:
    random = np.random.default_rng(1)
    for count in (1, 2, 63, 64, 65, 1_000):
        times = np.sort(random.uniform(0, random.choice([1e-3, 10.0, 600.0]), count))
        power_mw = np.where(random.random(count) < 0.2, np.nan, random.uniform(0, 1e6, count))
        at_us = (1e6 * times).astype(np.int64)
        parts = parts_of(Readings(at_us, times, power_mw, None), FINE)
        assert (parts["known"].sum(), parts["missing"].sum()) == (
            (~np.isnan(power_mw)).sum(),
            np.isnan(power_mw).sum(),
        )
        assert (parts["ended_s"] - parts["started_s"] <= 60.0).all()
        assert (parts["started_s"][1:] > parts["ended_s"][:-1]).all()
        for part in parts:
            inside = power_mw[(times >= part["started_s"]) & (times <= part["ended_s"])]
            known = inside[~np.isnan(inside)]
            assert (len(known), len(inside) - len(known)) == (part["known"], part["missing"])
            assert np.isnan(part["mean_mw"]) == (len(known) == 0)
            if len(known):
                assert part["mean_mw"] == pytest.approx(known.mean())
                assert (part["least_mw"], part["greatest_mw"]) == (known.min(), known.max())


def test_parts_of_a_later_version_are_not_misread() -> None:
    with pytest.raises(ValueError, match="parts of a power block of version 9"):
        unpack_parts([b"\x09"])


def some(database: Database) -> list[int]:
    """Keys of the first blocks of one device and method, as they came."""
    with database.read() as session:
        rows = session.execute(
            select(PowerSample.key)
            .where(
                PowerSample.device_key == select(func.min(Device.key)).scalar_subquery(),
                PowerSample.method == "instant",
            )
            .order_by(PowerSample.started_monotonic_s)
            .limit(50)
        )
        return list(rows.scalars())


@pytest.mark.parametrize("point", ["before UPDATE", "after UPDATE", "before DELETE", "after DELETE"])
def test_a_service_killed_between_any_two_steps_leaves_the_blocks_as_they_came(
    database: Database, database_url: str, point: str
) -> None:
    made(database)
    before, kept = readings(database), blocks(database)
    process = multiprocessing.get_context("spawn").Process(
        target=_join_and_die, args=(database_url, some(database), point)
    )
    process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL
    assert blocks(database) == kept
    assert same(readings(database), before)
    assert join_all(database, Mishaps(), ENOUGH) > 0
    assert same(readings(database), before)


def _join_and_die(url: str, keys: list[int], point: str) -> None:
    when, word = point.split()

    def die(*arguments: object) -> None:
        if str(arguments[2]).startswith(f"{word} "):
            os.kill(os.getpid(), signal.SIGKILL)

    with Database(url) as database:
        event.listen(Engine, f"{when}_cursor_execute", die)
        join_blocks(database, keys)


def test_two_services_that_join_at_once_join_each_block_once(database: Database, database_url: str) -> None:
    made(database)
    before = readings(database)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        counts = pool.map(_join_everything, [database_url] * 2, chunksize=1)
    assert sum(counts) == len(blocks(database))
    assert same(readings(database), before)


def _join_everything(url: str) -> int:
    count, mishaps = 0, Mishaps()
    with Database(url) as database:
        while made_now := join_all(database, mishaps, 3):
            count += made_now
    return count


def meanwhile(monkeypatch: pytest.MonkeyPatch, what: Callable[[], object]) -> None:
    """Does something between the reading of the next blocks to join and the writing."""

    def first_something_else(found: Readings) -> object:
        monkeypatch.undo()
        what()
        return joined_columns(found)

    monkeypatch.setattr("services.power_joining.joined_columns", first_something_else)


def test_whoever_comes_second_to_the_same_blocks_changes_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(database)
    before, keys = readings(database), some(database)
    some_keys, left = keys[:20], keys[20:]
    meanwhile(monkeypatch, lambda: join_blocks(database, some_keys))
    assert not join_blocks(database, some_keys)
    assert same(readings(database), before)
    assert not join_blocks(database, some_keys)
    # Another that saw some of them, and some more.
    meanwhile(monkeypatch, lambda: join_blocks(database, left[1:3]))
    assert not join_blocks(database, left[:2])
    assert same(readings(database), before)


def test_new_blocks_that_were_given_the_keys_of_pruned_ones_are_left_alone(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(sqlite_database)
    keys, kept = some(sqlite_database), blocks(sqlite_database)

    def replace() -> None:
        with sqlite_database.write() as session:
            session.execute(delete(PowerSample))
        made(sqlite_database)

    meanwhile(monkeypatch, replace)
    assert not join_blocks(sqlite_database, keys)
    assert blocks(sqlite_database) == kept


def test_what_is_pruned_meanwhile_does_not_come_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    identifier = made(database)
    with database.write() as session:
        long_ago = now(session) - timedelta(days=31)
        session.execute(update(Experiment).where(Experiment.id == identifier).values(finished_at=long_ago))
    keys = some(database)
    meanwhile(monkeypatch, lambda: deletion.prune_power(database, 30))
    assert not join_blocks(database, keys)
    assert blocks(database) == []


def test_of_an_experiment_under_way_only_what_is_full_is_joined(database: Database) -> None:
    identifier = made(database, ends=False)
    before = readings(database)
    assert join_all(database, Mishaps(), ENOUGH) > 0
    assert same(readings(database), before)
    left = [count for _, count, was_joined in blocks(database) if not was_joined]
    assert left
    kept = [each for each in blocks(database) if each[2]]
    assert join_all(database, Mishaps(), ENOUGH) == 0
    with database.write() as session:
        session.execute(update(Experiment).where(Experiment.id == identifier).values(state="succeeded"))
    assert join_all(database, Mishaps(), ENOUGH) > 0
    assert all(was_joined for _, _, was_joined in blocks(database))
    # What was joined is never opened again.
    assert set(kept) <= set(blocks(database))
    assert same(readings(database), before)


def test_the_sweep_joins_a_little_at_a_time(database: Database) -> None:
    made(database)
    assert join_all(database, Mishaps(), 2) == 2
    assert sum(was_joined for _, _, was_joined in blocks(database)) == 2
    assert housekeeping.sweep(database).joined > 2
    assert all(was_joined for _, _, was_joined in blocks(database))
    assert housekeeping.sweep(database).joined == 0


def test_what_can_not_be_read_of_one_device_keeps_no_other_from_being_joined(database: Database) -> None:
    made(database)
    with database.write() as session:
        bad = session.get_one(PowerSample, some(database)[0])
        bad.readings = b"\x09\x00" + bad.readings[2:]
        spoilt = bad.device_key
    mishaps = Mishaps()
    assert join_all(database, mishaps, ENOUGH) > 0
    with database.read() as session:
        left = session.scalars(select(PowerSample.device_key).where(PowerSample.parts.is_(None))).all()
    assert set(left) == {spoilt}
    assert mishaps.failing_s(f"joining the power of device {spoilt}") is not None


def test_what_an_attempt_that_was_cut_off_used_is_the_same(database: Database) -> None:
    identifier = made(database)

    def interrupted() -> tuple[float | None, str | None]:
        with database.read() as session:
            run = session.scalars(select(Run).where(Run.experiment_id == identifier)).one()
            attempt = session.scalars(select(Attempt)).one()
            devices = session.scalars(select(Device.key)).all()
            return interrupted_energy(session, run, attempt, [], devices, 2.0)

    before = interrupted()
    assert before[0] is not None
    join_all(database, Mishaps(), ENOUGH)
    assert interrupted() == before


def block(key: int, started_s: float, samples: int = 4, **changes: Any) -> Block:
    return Block(key, "instant", started_s, started_s + 1.5, samples, 1.0)._replace(**changes)


def told(found: Iterator[power_joining.Group]) -> list[list[int]]:
    return [group.keys for group in found]


def test_a_group_ends_where_its_block_would_be_too_long_or_hold_too_much() -> None:
    in_time = [block(number, 100.0 * number) for number in range(8)]
    assert told(groups_of(in_time, has_ended=True)) == [[0, 1, 2, 3, 4, 5], [6, 7]]
    assert told(groups_of(in_time, has_ended=False)) == [[0, 1, 2, 3, 4, 5]]
    large = [block(number, float(number), samples=MOST_READINGS // 2) for number in range(5)]
    assert told(groups_of(large, has_ended=False)) == [[0, 1], [2, 3]]
    many = [block(number, number / 1_000) for number in range(MOST_BLOCKS + 1)]
    assert told(groups_of(many, has_ended=False)) == [list(range(MOST_BLOCKS))]


def test_a_straggler_that_nothing_can_follow_is_a_group_of_its_own() -> None:
    found = [block(1, 0.0), block(2, LONGEST_JOINED_S + 1.0)]
    assert told(groups_of(found, has_ended=False)) == [[1]]
    other = [block(1, 0.0, method="average"), block(2, LONGEST_JOINED_S + 1.0)]
    assert told(groups_of(other, has_ended=False)) == [[1]]


def test_blocks_without_any_power_and_other_methods_stay_among_themselves() -> None:
    found = [
        block(1, 0.0),
        block(2, 2.0, mean_mw=None),
        block(3, 4.0, method="average"),
        block(4, 6.0),
        block(5, 8.0, mean_mw=None),
    ]
    assert told(groups_of(found, has_ended=True)) == [[1, 4], [2, 5], [3]]
