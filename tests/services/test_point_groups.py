"""Batches of points that wait together are written together, and each has its own answer."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from services import point_groups
from services.database import Database
from services.errors import DatabaseUnavailable
from services.point_groups import PointGroups
from services.point_writes import Sent, store
from tests.services.simulated_job import begun
from tests.services.test_point_writes import rows_of, sent, told

Outcome = int | None | BaseException


class Held:
    """The first transaction waits until all others wait for it; one that holds a batch of `bad` fails with an error."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        """How many were written together each time."""
        self.all_wait = threading.Event()
        self.bad: list[Sent] = []
        self.error: Exception = ValueError("this batch can't be written")

    def store(self, db: Database, batches: Sequence[Sent]) -> list[int | None]:
        """Writes."""
        self.sizes.append(len(batches))
        assert self.all_wait.wait(30)
        if any(each in self.bad for each in batches):
            raise self.error
        return store(db, batches)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    """In place of what writes."""
    found = Held()
    monkeypatch.setattr(point_groups, "store", found.store)
    return found


def written(database: Database, batches: Sequence[Sent], held: Held) -> list[Outcome]:
    """What comes of each; the first is being written while all others come to wait."""

    async def write() -> list[Outcome]:
        with PointGroups(database) as groups:
            tasks = [asyncio.create_task(groups.write(batches[0]))]
            while not held.sizes:
                await asyncio.sleep(0.001)
            tasks += [asyncio.create_task(groups.write(each)) for each in batches[1:]]
            await asyncio.sleep(0)
            held.all_wait.set()
            return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(write())


def batches_of(database: Database, count: int) -> list[Sent]:
    """Each of an experiment of its own."""
    return [sent(database, job, told(job)) for _, _, job in (begun(database) for _ in range(count))]


def test_all_that_wait_share_a_transaction(database: Database, held: Held) -> None:
    batches = batches_of(database, 5)
    assert written(database, batches, held) == [3] * 5
    assert held.sizes == [1, 4]
    assert rows_of(database) == (15, 15, 30)


def test_one_that_can_not_be_written_fails_alone_and_is_left_to_ingest(
    database: Database, held: Held
) -> None:
    batches = batches_of(database, 5)
    held.bad = [batches[2]]
    assert written(database, batches, held) == [3, 3, None, 3, 3]
    assert held.sizes == [1, 4, 1, 1, 1, 1]
    assert rows_of(database) == (12, 12, 24)


def test_a_database_that_is_away_is_away_for_all(sqlite_database: Database, held: Held) -> None:
    batches = batches_of(sqlite_database, 3)
    held.bad, held.error = [batches[1]], DatabaseUnavailable("it is away")
    first, *others = written(sqlite_database, batches, held)
    assert first == 3
    assert [type(each) for each in others] == [DatabaseUnavailable] * 2
    assert held.sizes == [1, 2]


def test_no_transaction_holds_more_events_than_others_would_wait_for(
    sqlite_database: Database, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(point_groups, "MOST_EVENTS", 6)
    assert written(sqlite_database, batches_of(sqlite_database, 6), held) == [3] * 6
    assert held.sizes == [1, 2, 2, 1]
