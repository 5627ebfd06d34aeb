"""The database: what both kinds promise, and what SQLite needs for it."""

import contextlib
import sqlite3
import threading
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from sqlalchemy import URL, insert, make_url, select, text, update
from sqlalchemy.exc import IntegrityError, StatementError

from services import engines, heartbeats
from services.database import Database, now
from services.errors import DatabaseError, DatabaseUnavailable
from services.tables import Heartbeat, Run, Switch
from tests.postgresql_sessions import end_sessions


def test_a_write_is_kept_and_a_failed_one_is_not(database: Database) -> None:
    def switch(name: str, *, fails: bool) -> None:
        with database.write() as session:
            session.execute(insert(Switch).values(name=name, value={}, set_at=datetime.now(UTC)))
            if fails:
                raise RuntimeError

    switch("kept", fails=False)
    with pytest.raises(RuntimeError):
        switch("undone", fails=True)
    with database.read() as session:
        assert session.scalars(select(Switch.name)).all() == ["kept"]


def test_a_read_changes_nothing(database: Database) -> None:
    # PostgreSQL refuses at once; SQLite never commits it.
    refused = contextlib.nullcontext() if database.is_sqlite else pytest.raises(Exception, match="read-only")
    with refused, database.read() as session:
        session.execute(insert(Switch).values(name="sly", value={}, set_at=datetime.now(UTC)))
    with database.read() as session:
        assert session.scalars(select(Switch.name)).all() == []


def test_a_read_sees_one_state_while_others_write(database: Database) -> None:
    with database.read() as session:
        assert session.scalars(select(Switch.name)).all() == []
        with database.write() as other:
            other.execute(insert(Switch).values(name="new", value={}, set_at=datetime.now(UTC)))
        assert session.scalars(select(Switch.name)).all() == []


def test_times_come_back_aware_and_in_utc(database: Database) -> None:
    there = datetime(2026, 3, 4, 5, 6, 7, 891_234, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    with database.write() as session:
        session.add(Heartbeat(owner="a", at=there, state={}))
    with database.read() as session:
        back = session.get_one(Heartbeat, "a").at
    assert back == there
    assert back.tzinfo is UTC


def test_times_keep_their_order_in_queries(database: Database) -> None:
    base = datetime(2026, 1, 1, tzinfo=UTC)
    with database.write() as session:
        for number in (2, 0, 1):
            session.add(Heartbeat(owner=str(number), at=base + timedelta(microseconds=number), state={}))
    with database.read() as session:
        ordered = session.scalars(select(Heartbeat.owner).order_by(Heartbeat.at)).all()
        assert ordered == ["0", "1", "2"]
        later = select(Heartbeat.owner).where(Heartbeat.at > base + timedelta(microseconds=1))
        assert session.scalars(later).all() == ["2"]


def test_a_time_without_a_zone_is_refused(database: Database) -> None:
    naive = insert(Heartbeat).values(owner="a", at=datetime(2026, 1, 1), state={})  # noqa: DTZ001
    with pytest.raises(StatementError, match="has no time zone"), database.write() as session:
        session.execute(naive)


def test_now_is_close_to_this_hosts_clock(database: Database) -> None:
    with database.read() as session:
        assert abs(now(session) - datetime.now(UTC)) < timedelta(minutes=1)


def test_foreign_keys_hold(database: Database) -> None:
    with pytest.raises(IntegrityError), database.write() as session:
        session.execute(
            insert(Run).values(
                id="r",
                experiment_id="nobody",
                arm_key=1,
                round=0,
                position=0,
                seed=0,
                state="queued",
                attempt=0,
            )
        )


def test_a_state_that_does_not_exist_is_refused_by_the_database(database: Database) -> None:
    from services import experiments
    from tests.services.simulated_job import spec

    identifier = experiments.submit(database, spec())
    with pytest.raises(IntegrityError), database.write() as session:
        session.execute(update(Run).where(Run.experiment_id == identifier).values(state="resting"))


def test_reading_first_and_writing_later_waits_for_other_writers(database: Database) -> None:
    """On SQLite a deferred transaction that does so fails at once with `database is locked`."""
    with database.write() as session:
        session.add(Switch(name="count", value={"n": 0}, set_at=datetime.now(UTC)))

    def add() -> None:
        for _ in range(20):
            with database.write() as session:
                switch = session.get_one(Switch, "count", with_for_update=True)
                switch.value = {"n": switch.value["n"] + 1}

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.read() as session:
        assert session.get_one(Switch, "count").value == {"n": 80}


def test_the_same_from_two_databases_objects_as_from_two_processes(database_url: str) -> None:
    with Database(database_url) as first, Database(database_url) as second:
        with first.write() as session:
            session.add(Switch(name="count", value={"n": 0}, set_at=datetime.now(UTC)))

        def add(database: Database) -> None:
            for _ in range(15):
                with database.write() as session:
                    switch = session.get_one(Switch, "count", with_for_update=True)
                    switch.value = {"n": switch.value["n"] + 1}

        threads = [threading.Thread(target=add, args=(database,)) for database in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with second.read() as session:
            assert session.get_one(Switch, "count").value == {"n": 30}


def test_sqlite_keeps_a_write_ahead_log_and_waits_when_busy(tmp_path: Path) -> None:
    with Database(f"sqlite:///{tmp_path}/a.db") as database, database.read() as session:
        pragmas = {
            name: session.execute(text(f"PRAGMA {name}")).scalar_one()
            for name in ("journal_mode", "foreign_keys", "busy_timeout", "synchronous")
        }
    assert pragmas == {"journal_mode": "wal", "foreign_keys": 1, "busy_timeout": 10_000, "synchronous": 2}


def test_a_new_sqlite_file_that_another_process_opens_in_the_same_moment_is_waited_for(
    tmp_path: Path,
) -> None:
    """SQLite refuses one of them at once, as here a connection without patience is refused while another reads."""
    file = tmp_path / "a.db"
    with (
        contextlib.closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as first,
        contextlib.closing(sqlite3.connect(file, isolation_level=None, timeout=0)) as second,
    ):
        first.execute("CREATE TABLE made (x)")
        first.execute("BEGIN")
        first.execute("SELECT * FROM made").fetchall()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            second.execute("PRAGMA journal_mode = WAL")
        over = threading.Timer(0.3, first.execute, ["COMMIT"])
        over.start()
        engines.keep_a_log_ahead(second.cursor())
        over.join()
        assert second.execute("PRAGMA journal_mode").fetchall() == [("wal",)]


def test_a_sqlite_file_that_can_not_be_written_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "BUSY_TIMEOUT_S", 1e6)
    file = tmp_path / "a.db"
    with contextlib.closing(sqlite3.connect(file)) as made:
        made.execute("CREATE TABLE made (x)")
    with (
        contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as reading,
        pytest.raises(sqlite3.OperationalError, match="readonly"),
    ):
        engines.keep_a_log_ahead(reading.cursor())


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:////a.db?mode=ro"])
def test_a_sqlite_that_threads_can_not_share_is_refused(url: str) -> None:
    with pytest.raises(DatabaseError, match="names no plain file"):
        Database(url)


def test_other_databases_are_refused() -> None:
    with pytest.raises(DatabaseError, match="mysql is not supported"):
        Database("mysql+pymysql://h/d")


def test_a_server_that_does_not_answer_is_unavailable_and_its_password_unsaid() -> None:
    with Database("postgresql+psycopg://u:secret@127.0.0.1:1/d") as database:
        assert "secret" not in database.name
        with pytest.raises(DatabaseUnavailable) as caught:
            database.check()
        assert "secret" not in str(caught.value)


def test_closing_twice_is_fine(database: Database) -> None:
    database.check()
    database.close()
    database.close()


def test_a_database_that_stays_locked_is_unavailable_and_then_works_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("database", "engines"):
        monkeypatch.setattr(f"services.{module}.BUSY_TIMEOUT_S", 0.2)
    url = f"sqlite:///{tmp_path}/a.db"
    with Database(url) as database, Database(url) as other:
        database.migrate()
        heartbeats.beat(database, "a")
        with other.write() as session:
            session.execute(select(1))
            with pytest.raises(DatabaseUnavailable, match="database is locked"):
                heartbeats.beat(database, "a")
        heartbeats.beat(database, "a")
        with database.write(), pytest.raises(DatabaseUnavailable, match="has been busy for"):
            heartbeats.beat(database, "b")
        heartbeats.beat(database, "b")


def test_connections_that_the_server_closed_are_replaced(migrated_postgresql: URL) -> None:
    url = migrated_postgresql.render_as_string(hide_password=False)
    with Database(url) as database:
        database.check()
        with Database(url) as other, other.read() as session:
            end_sessions(session.connection(), migrated_postgresql.database)
        database.check()
        heartbeats.beat(database, "a")
        with database.write() as session:
            session.execute(text("DELETE FROM heartbeats"))


def test_a_connection_that_is_lost_in_a_write_undoes_it_and_is_unavailable(migrated_postgresql: URL) -> None:
    url = migrated_postgresql.render_as_string(hide_password=False)

    def write_and_lose(database: Database) -> None:
        with database.write() as session:
            session.execute(insert(Switch).values(name="lost", value={}, set_at=datetime.now(UTC)))
            session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    with Database(url) as database:
        with pytest.raises(DatabaseUnavailable):
            write_and_lose(database)
        with database.read() as session:
            assert session.scalars(select(Switch.name)).all() == []


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_reads_from_postgresql_start_no_workers(database_url: str) -> None:
    engine = engines.postgresql_engine(make_url(database_url))
    with engine.connect() as connection:
        # As cheap as they can be, so that the planner would take some for any table.
        for name in ("parallel_setup_cost", "parallel_tuple_cost", "min_parallel_table_scan_size"):
            connection.exec_driver_sql(f"SET {name} = 0")
        plan = connection.exec_driver_sql("EXPLAIN SELECT count(*) FROM pg_class").scalars().all()
    engine.dispose()
    assert not [line for line in plan if "Gather" in line or "Workers" in line], plan
