"""SQLite takes submissions in one statement, beside whoever else writes; no migration finds that in its way."""

import threading
from collections.abc import Callable

import pytest

from phantom_core.spec import ExperimentSpec
from services import admission_sqlite, experiments, schema
from services.admission_writes import admit
from services.admissions import Admission
from services.database import Database
from services.errors import DatabaseUnavailable
from services.tables import Experiment
from tests.running import wait_until
from tests.services.simulated_job import spec


def made(database: Database, identifier: str) -> bool:
    with database.read() as session:
        return session.get(Experiment, identifier) is not None


def test_another_process_that_writes_all_the_time_makes_a_submission_wait_not_fail(
    sqlite_database: Database,
) -> None:
    given: ExperimentSpec = spec()
    is_over = threading.Event()
    with Database(f"sqlite:///{sqlite_database.file}") as other:
        written = [experiments.submit(other, given)]

        def write() -> None:
            while not is_over.is_set():
                written.append(experiments.submit(other, given))

        thread = threading.Thread(target=write)
        thread.start()
        try:
            wait_until(lambda: len(written) > 1, 120, "another writer", every_s=0.01)
            admissions = [experiments.prepare(given) for _ in range(40)]
            assert all(admit(sqlite_database, [each]) == {each.id} for each in admissions)
        finally:
            is_over.set()
            thread.join()
    assert all(made(sqlite_database, each.id) for each in admissions)
    assert all(made(sqlite_database, each) for each in written)


def test_of_a_group_exactly_those_whose_key_is_free_are_written_and_said_to_be(
    sqlite_database: Database,
) -> None:
    def keyed(key: str | None, name: str) -> Admission:
        return experiments.prepare(spec(name=name), idempotency_key=key)

    earlier = keyed("taken", "earlier")
    assert admit(sqlite_database, [earlier]) == {earlier.id}
    group = [keyed(None, "plain"), keyed("taken", "late"), keyed("free", "first"), keyed("free", "second")]
    assert admit(sqlite_database, group) == {group[0].id, group[2].id}
    assert [made(sqlite_database, each.id) for each in group] == [True, False, True, False]
    with sqlite_database.read() as session:
        for table in ("arms", "runs", "experiment_tags"):
            found = session.connection().exec_driver_sql(f"SELECT DISTINCT experiment_id FROM {table}")
            assert set(found.scalars()) <= {earlier.id, group[0].id, group[2].id}


@pytest.mark.parametrize("migrate", [Database.migrate, schema.migrate])
def test_tables_can_be_migrated_by_a_process_that_has_taken_submissions(
    sqlite_database: Database, migrate: Callable[[Database, str], None]
) -> None:
    admit(sqlite_database, [experiments.prepare(spec())])
    migrate(sqlite_database, "base")
    migrate(sqlite_database, "head")
    again = experiments.prepare(spec())
    assert admit(sqlite_database, [again]) == {again.id}


def test_tables_that_were_missing_are_seen_once_they_are_there(sqlite_database: Database) -> None:
    with Database(f"sqlite:///{sqlite_database.file}") as other:
        other.migrate("base")
        for _ in range(2):
            with pytest.raises(DatabaseUnavailable, match="no such table"):
                admit(sqlite_database, [experiments.prepare(spec())])
        other.migrate()
    after = experiments.prepare(spec())
    assert admit(sqlite_database, [after]) == {after.id}


def test_what_a_connection_has_already_is_made_once(sqlite_database: Database) -> None:
    with sqlite_database.cursor(in_transaction=False) as cursor:
        # As if whoever made them had been cut off before it was noted.
        for statement in admission_sqlite.OWN:
            cursor.execute(statement)
    admission = experiments.prepare(spec())
    assert admit(sqlite_database, [admission]) == {admission.id}


def test_nothing_to_write_is_no_error(database: Database) -> None:
    assert admit(database, []) == frozenset()
