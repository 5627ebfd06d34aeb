"""Submissions that wait together are written together, and each has its own answer."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
from sqlalchemy.exc import IntegrityError

from phantom_core.plan import make_plan
from services import admission_groups, experiments, runs
from services.admission_groups import AdmissionGroups
from services.admission_writes import admit
from services.admissions import Admission
from services.database import Database
from services.errors import DatabaseUnavailable, IdempotencyConflict
from services.tables import Experiment
from tests.services.simulated_job import spec

Outcome = bool | BaseException


class Held:
    """The first transaction waits until all others wait for it."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        """How many were written together each time."""
        self.all_wait = threading.Event()

    def admit(self, db: Database, admissions: Sequence[Admission]) -> frozenset[str]:
        """Writes."""
        self.sizes.append(len(admissions))
        assert self.all_wait.wait(30)
        return admit(db, admissions)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    """In place of what writes."""
    found = Held()
    monkeypatch.setattr(admission_groups, "admit", found.admit)
    return found


def written(
    database: Database, admissions: Sequence[Admission], held: Held, gone: slice = slice(0, 0)
) -> list[Outcome]:
    """What comes of each; the first is being written while all others come to wait, some of which go away again."""

    async def write() -> list[Outcome]:
        with AdmissionGroups(database) as groups:
            tasks = [asyncio.create_task(groups.write(admissions[0]))]
            while not held.sizes:
                await asyncio.sleep(0.001)
            tasks += [asyncio.create_task(groups.write(each)) for each in admissions[1:]]
            await asyncio.sleep(0)
            for task in tasks[gone]:
                task.cancel()
            await asyncio.sleep(0)
            held.all_wait.set()
            return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(write())


def test_all_that_wait_share_a_transaction(database: Database, held: Held) -> None:
    admissions = [experiments.prepare(spec(name=f"n{number}")) for number in range(12)]
    assert written(database, admissions, held) == [True] * 12
    assert held.sizes == [1, 11]
    listed = experiments.list_experiments(database).items
    assert {each.id for each in listed} == {each.id for each in admissions}
    for admission in admissions:
        made = runs.list_runs(database, admission.id, limit=200).items
        assert [run.id for run in made] == [run.id for run in admission.runs]
        assert [run.arm for run in made] == [admission.arms[run.arm][0] for run in admission.runs]


def test_one_that_can_not_be_written_fails_alone(database: Database, held: Held) -> None:
    admissions = [experiments.prepare(spec(name=f"n{number}")) for number in range(6)]
    # Its second run has the id of its first.
    bad = admissions[3]
    admissions[3] = replace(bad, runs=(bad.runs[0], replace(bad.runs[1], id=bad.runs[0].id), *bad.runs[2:]))
    outcomes = written(database, admissions, held)
    assert held.sizes == [1, 5, 1, 1, 1, 1, 1]
    # SQLAlchemy's, or on SQLite, which is asked directly, the driver's.
    assert type(outcomes.pop(3)).__name__ == IntegrityError.__name__
    assert outcomes == [True] * 5
    listed = experiments.list_experiments(database).items
    assert {each.name for each in listed} == {"n0", "n1", "n2", "n4", "n5"}


def test_one_key_in_a_group_makes_one_experiment(database: Database, held: Held) -> None:
    names = ["first", "same", "same", "other", "same"]
    keys = [None, "k", "k", "k", "l"]
    admissions = [
        experiments.prepare(spec(name=name), submitted_by="me", idempotency_key=key)
        for name, key in zip(names, keys, strict=True)
    ]
    assert written(database, admissions, held) == [True, True, False, False, True]
    assert held.sizes == [1, 4]
    assert experiments.made_with_key_of(database, admissions[2]) == admissions[1].id
    with pytest.raises(IdempotencyConflict):
        experiments.made_with_key_of(database, admissions[3])
    assert len(experiments.list_experiments(database).items) == 3


def test_groups_of_several_processes_with_the_same_keys_end(database: Database) -> None:
    keys = [f"k{number}" for number in range(8)]

    async def submit(order: Sequence[str]) -> list[bool]:
        with AdmissionGroups(database) as groups:
            admissions = [experiments.prepare(spec(), idempotency_key=key) for key in order]
            return await asyncio.gather(*(groups.write(each) for each in admissions))

    outcomes: list[bool] = []

    def process(order: Sequence[str]) -> None:
        outcomes.extend(asyncio.run(submit(order)))

    orders = [keys, keys[::-1], keys[4:] + keys[:4]]
    threads = [threading.Thread(target=process, args=(order,)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [False] * 16 + [True] * 8
    assert len(experiments.list_experiments(database).items) == 8


def test_all_are_told_if_the_database_is_away(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()

    def away(_db: Database, admissions: Sequence[Admission]) -> frozenset[str]:
        held.sizes.append(len(admissions))
        assert held.all_wait.wait(30)
        raise DatabaseUnavailable("the database did not answer")

    monkeypatch.setattr(admission_groups, "admit", away)
    outcomes = written(database, [experiments.prepare(spec()) for _ in range(3)], held)
    assert held.sizes == [1, 2]
    assert [str(outcome) for outcome in outcomes] == ["the database did not answer"] * 3
    assert len({id(outcome) for outcome in outcomes}) == 3


def test_whoever_stopped_waiting_keeps_nobody_else_from_an_answer(database: Database) -> None:
    admissions = [experiments.prepare(spec(name=f"n{number}")) for number in range(3)]

    async def write() -> list[Outcome]:
        with AdmissionGroups(database) as groups:
            tasks = [asyncio.create_task(groups.write(each)) for each in admissions]
            await asyncio.sleep(0)
            tasks[1].cancel()
            return await asyncio.gather(*tasks, return_exceptions=True)

    first, cancelled, last = asyncio.run(write())
    assert (first, last) == (True, True)
    assert isinstance(cancelled, asyncio.CancelledError)


def test_what_waits_at_the_end_is_written_and_nothing_after_it(database: Database) -> None:
    admissions = [experiments.prepare(spec(name=f"n{number}")) for number in range(40)]

    async def write() -> list[Outcome]:
        groups = AdmissionGroups(database)
        tasks = [asyncio.create_task(groups.write(each)) for each in admissions]
        await asyncio.sleep(0)
        await asyncio.to_thread(groups.close)
        with pytest.raises(DatabaseUnavailable, match="ending"):
            await groups.write(admissions[0])
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert asyncio.run(write()) == [True] * 40
    assert len(experiments.list_experiments(database, limit=200).items) == 40


def test_values_come_back_as_they_were_given(database: Database) -> None:
    given = spec(
        name="a = b",
        description="line\nwith 'quotes', \"more\", \\ and 😀",
        tags={"team": "räksmörgås 😀", "empty": "", "number": "0123"},
        measurement={"rounds": 3, "sample_rate_hz": 10 / 3},
        resources={"priority": 7},
    )
    admission = experiments.prepare(given, submitted_by="someone")
    assert admit(database, [admission]) == {admission.id}
    found = experiments.get(database, admission.id)
    assert found.spec == given.model_dump(mode="json")
    assert found.tags == given.tags
    assert found.description == given.description
    with database.read() as session:
        row = session.get_one(Experiment, admission.id)
        assert (row.priority, row.submitted_by, row.sample_rate_hz) == (7, "someone", 10 / 3)
        assert row.plan["arms"][1]["arm"]["ghosts"] == 4
        assert row.plan == make_plan(given).model_dump(mode="json", exclude={"spec"})


def test_what_nobody_waits_for_any_more_is_not_written(database: Database, held: Held) -> None:
    admissions = [experiments.prepare(spec(name=f"n{number}")) for number in range(4)]

    outcomes = written(database, admissions, held, gone=slice(1, 3))
    assert [isinstance(each, asyncio.CancelledError) for each in outcomes] == [False, True, True, False]
    assert held.sizes == [1, 1]
    listed = experiments.list_experiments(database).items
    assert {each.id for each in listed} == {admissions[0].id, admissions[3].id}


def test_at_the_end_a_database_that_is_away_is_waited_for_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_groups, "MOST_TOGETHER", 1)
    all_wait = threading.Event()
    tried: list[Admission] = []

    def away(_db: Database, admissions: Sequence[Admission]) -> frozenset[str]:
        tried.extend(admissions)
        assert all_wait.wait(30)
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(admission_groups, "admit", away)

    async def write() -> list[Outcome]:
        groups = AdmissionGroups(database)
        tasks = [
            asyncio.create_task(groups.write(experiments.prepare(spec(name=f"n{number}"))))
            for number in range(5)
        ]
        while not tried:
            await asyncio.sleep(0.001)
        closing = asyncio.create_task(asyncio.to_thread(groups.close))
        while not groups._is_closed:
            await asyncio.sleep(0.001)
        all_wait.set()
        await closing
        return await asyncio.gather(*tasks, return_exceptions=True)

    outcomes = asyncio.run(write())
    assert all(isinstance(each, DatabaseUnavailable) for each in outcomes)
    assert len(tried) == 1


def test_what_comes_while_the_loop_looks_for_requests_once_is_handed_over_together(
    database: Database, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What writes may still begin with less: it works in a thread of its own."""
    handed_over: list[int] = []
    hand_over = AdmissionGroups._put_gathered

    def noted(groups: AdmissionGroups) -> None:
        if groups._gathered:
            handed_over.append(len(groups._gathered))
        hand_over(groups)

    monkeypatch.setattr(AdmissionGroups, "_put_gathered", noted)
    admissions = [experiments.prepare(spec(name=f"n{number}")) for number in range(3)]
    held.all_wait.set()

    async def write() -> list[bool]:
        with AdmissionGroups(database) as groups:
            first = asyncio.create_task(groups.write(admissions[0]))
            await asyncio.sleep(0)
            # As a request that was on its way begins once the loop has looked.
            later = [asyncio.create_task(groups.write(each)) for each in admissions[1:]]
            return await asyncio.gather(first, *later)

    assert asyncio.run(write()) == [True] * 3
    assert handed_over == [3]
    assert sum(held.sizes) == 3


def test_loops_that_write_at_the_same_time_wait_for_none_of_each_other(database: Database) -> None:
    admissions = [experiments.prepare(spec(name=f"n{number}")) for number in range(60)]
    outcomes: list[bool] = []
    with AdmissionGroups(database) as groups:

        async def write(mine: Sequence[Admission]) -> list[bool]:
            return [await groups.write(each) for each in mine]

        threads = [
            threading.Thread(
                target=lambda part=part: outcomes.extend(asyncio.run(write(admissions[part::3])))
            )
            for part in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert outcomes == [True] * 60
