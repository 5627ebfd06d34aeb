"""Migrations: up and down with rows in every table, on both databases; tables and revisions are one."""

import math
import multiprocessing
import re
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import func, insert, inspect, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

import migrations
from phantom_core.protocol import AssignedRun, Event, MetricPoint, Metrics
from services import (
    deletion,
    experiments,
    groups,
    heartbeats,
    histories,
    housekeeping,
    job_logs,
    keys,
    leases,
    power_history,
    revisions,
    switches,
)
from services.columns import Base
from services.database import Database
from services.errors import DatabaseError
from services.log_parts import LogPart
from services.mishaps import Mishaps
from services.tables import BoardStateBlock, Device
from tests.services.rows import snapshot
from tests.services.simulated_job import Figures, begun, deliver, ran, spec

Told = tuple[str, int, float, float | None, float | None]
"""A point: name, step, value, energy in millijoules, training seconds."""

VERSIONS = sorted(Path(migrations.__file__).parent.joinpath("versions").glob("[0-9]*.py"))


def fill(database: Database) -> None:
    """Puts rows into every table."""
    ran(database, spec(tags={"team": "a"}), {"phantom": Figures(power_mw=60_000.0)})
    underway, _, _ = begun(database)
    job_logs.store(database, underway, 1, LogPart(0, b"a line\n"), ended=False)
    experiments.submit(database, spec(), idempotency_key="k")
    keys.create(database, "mine", [keys.Scope.READ])
    switches.pause_queue(database, "maintenance")
    heartbeats.beat(database, "dispatcher")
    groups.register(database, "exp-1", groups.Shape(2, "cpu", 1.0, "http://s", "ghostwatt"), "exp-1", 1)
    with database.write() as session:
        device = session.scalars(select(Device)).first()
        assert device is not None
        session.execute(
            insert(BoardStateBlock).values(
                device_key=device.key,
                experiment_attempt=1,
                started_at=datetime.now(UTC),
                started_monotonic_s=0.0,
                ended_monotonic_s=1.0,
                states=[],
            )
        )


def counts(database: Database) -> dict[str, int]:
    """Rows of every table."""
    with database.read() as session:
        return {
            name: session.execute(select(func.count()).select_from(table)).scalar_one()
            for name, table in Base.metadata.tables.items()
        }


def test_tables_and_revisions_are_one(empty_database_url: str) -> None:
    with Database(empty_database_url) as database:
        database.migrate()
        with database.connection() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, Base.metadata) == []


def test_constraints_and_indexes_are_those_of_the_tables(empty_database_url: str, tmp_path: Path) -> None:
    """Alembic compares neither check constraints nor what deleting a parent does."""
    with Database(empty_database_url) as database:
        database.migrate()
        with database.connection() as connection:
            migrated = _structure(inspect(connection))
    with Database(f"sqlite:///{tmp_path}/made.db") as made, made.connection() as connection:
        Base.metadata.create_all(connection)
        connection.commit()
        assert migrated == _structure(inspect(connection))


def test_skipped_runs_are_cancelled_ones_to_an_earlier_version(empty_database_url: str) -> None:
    with Database(empty_database_url) as database:
        database.migrate()
        identifier, _, _ = begun(database)
        with database.write() as session:
            session.execute(text("UPDATE runs SET state = 'skipped' WHERE round = 2"))
        database.migrate("0001")
        with database.write() as session:
            assert _run_states(session) == {"queued": 4, "cancelled": 2}
            with pytest.raises(IntegrityError), session.begin_nested():
                session.execute(text("UPDATE runs SET state = 'skipped'"))
        database.migrate()
        with database.write() as session:
            session.execute(text("UPDATE runs SET state = 'skipped' WHERE state = 'cancelled'"))
            assert _run_states(session) == {"queued": 4, "skipped": 2}
        assert experiments.get(database, identifier).runs == {"queued": 4, "skipped": 2}


def test_metric_points_are_rows_to_an_earlier_version_and_blocks_again_to_this_one(
    empty_database_url: str,
) -> None:
    with Database(empty_database_url) as database:
        database.migrate()
        _, _, job = begun(database)
        first, second = job.assignment.runs[:2]
        large = 2**63 - 1
        told: dict[tuple[AssignedRun, str, int], Sequence[Told]] = {
            (first, "rank-0", 0): [("loss", 5, 0.1, 1.0, None), ("a", 5, math.nan, None, 2.0)],
            (first, "rank-0", 1): [("loss", step, 1.0 / step, None, None) for step in range(1, 400)],
            (first, "rank-1", 1): [("loss", step, -math.inf, None, None) for step in (-large, 700, large)],
            (first, "rank-0", 7): [("x" * 64, 70_000, math.inf, 3.0, 4.0), ("x" * 64, 0, -2.5, None, 0.0)],
            (second, "rank-0", 1): [("loss", 5, 5e-324, None, None)],
        }
        for (run, source, seq), points in told.items():
            payload = Metrics(
                points=tuple(
                    MetricPoint(step=step, name=name, value=value, energy_mj=energy_mj, training_s=training_s)
                    for name, step, value, energy_mj, training_s in points
                )
            )
            event = Event(
                subject_id=run.run_id,
                attempt=run.attempt,
                source=source,
                seq=seq,
                at=datetime.now(UTC),
                payload=payload,
            )
            deliver(database, job, [event])
        before = [histories.metric_history(database, run.run_id) for run in (first, second)]
        database.migrate("0007")
        with database.read() as session:
            rows = {
                tuple(row)
                for row in session.execute(
                    text(
                        "SELECT id, name, seq, step, value, metrics.non_finite, energy_mj, metrics.training_s "
                        "FROM metrics JOIN runs ON runs.key = metrics.run_key"
                    )
                )
            }
        assert rows == {
            (
                run.run_id,
                name,
                seq,
                step,
                value if math.isfinite(value) else None,
                None if math.isfinite(value) else str(value),
                energy_mj,
                training_s,
            )
            for (run, _, seq), points in told.items()
            for name, step, value, energy_mj, training_s in points
        }
        database.migrate()
        after = [histories.metric_history(database, run.run_id) for run in (first, second)]
        assert repr(after) == repr(before)
        with database.read() as session:
            sources = session.execute(text("SELECT DISTINCT source FROM metric_blocks")).scalars().all()
        assert sources == ["rank-0"]


def test_joined_power_is_short_blocks_to_an_earlier_version(empty_database_url: str) -> None:
    with Database(empty_database_url) as database:
        database.migrate()
        identifier = ran(database, spec(), {"phantom": Figures(windows=30)})
        run = f"{identifier}-r000-a00"
        before, power = snapshot(database, identifier), power_history.power_history(database, run)
        assert housekeeping.sweep(database).joined > 0
        database.migrate("0008")
        with database.read() as session:
            longest_s, blocks = session.execute(
                text("SELECT max(ended_monotonic_s - started_monotonic_s), count(*) FROM power_samples")
            ).one()
        assert longest_s <= 60
        assert blocks > 6
        database.migrate()
        assert snapshot(database, identifier) == before
        assert power_history.power_history(database, run) == power
        assert housekeeping.sweep(database).joined > 0
        assert power_history.power_history(database, run) == power


def test_up_down_and_up_again_leaves_an_empty_database_as_it_was(empty_database_url: str) -> None:
    with Database(empty_database_url) as database:
        assert database.revision() is None
        database.migrate()
        assert database.is_at_head()
        database.migrate("base")
        assert database.revision() is None
        with database.connection() as connection:
            assert set(inspect(connection).get_table_names()) <= {"alembic_version"}
        database.migrate()
        assert database.is_at_head()


def test_every_table_can_be_filled_and_the_rows_survive_a_second_migration(empty_database_url: str) -> None:
    with Database(empty_database_url) as database:
        database.migrate()
        fill(database)
        before = counts(database)
        assert all(before.values()), before
        database.migrate()
        assert counts(database) == before


@pytest.mark.parametrize("step", range(len(VERSIONS)))
def test_every_step_down_and_up_keeps_the_rows_of_other_tables(empty_database_url: str, step: int) -> None:
    """Alembic's way to alter a table on SQLite would delete its children's rows if foreign keys were on."""
    with Database(empty_database_url) as database:
        database.migrate()
        fill(database)
        before = counts(database)
        known = [_revision(file) for file in VERSIONS]
        below = ["base", *known][step]
        database.migrate(below)
        if below == "base":
            return
        left = {table: before[table] for table in before if _has(database, table)}
        database.migrate()
        after = counts(database)
        assert {table: after[table] for table in left} == left
        _assert_foreign_keys_hold(database)


ALTERS_A_PARENT = """
import sqlalchemy as sa
from alembic import op

revision: str = "9001"
down_revision: str | None = "{head}"


def upgrade() -> None:
    with op.batch_alter_table("experiments") as batch:
        batch.alter_column("name", type_=sa.String(length=100), existing_nullable=False)
        batch.add_column(sa.Column("extra", sa.Integer(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("experiments") as batch:
        batch.drop_column("extra")
        batch.alter_column("name", type_=sa.String(length=80), existing_nullable=False)
"""


def test_altering_a_parent_table_keeps_its_children(
    empty_database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite a table is altered by a copy, and dropping the old one would take the children's rows along."""
    with Database(empty_database_url) as database:
        database.migrate()
        fill(database)
        before, newest = counts(database), revisions.newest()
        folder = tmp_path / "migrations"
        shutil.copytree(Path(migrations.__file__).parent, folder)
        folder.joinpath("versions", "9001_alters_a_parent.py").write_text(ALTERS_A_PARENT.format(head=newest))
        monkeypatch.setattr("services.revisions.folder", lambda: folder)
        database.migrate()
        assert database.revision() == "9001"
        assert counts(database) == before
        database.migrate(newest)
        assert counts(database) == before
        _assert_foreign_keys_hold(database)


def test_rows_of_parents_can_not_go_without_their_children(database: Database) -> None:
    fill(database)
    identifier = experiments.list_experiments(database).items[-1].id
    experiments.request_delete(database, identifier)
    assert deletion.delete_asked(database, Mishaps()) == 0
    _assert_foreign_keys_hold(database)


def test_two_processes_that_start_at_once_migrate_once(empty_database_url: str) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        assert pool.map(_migrate, [empty_database_url] * 2) == [True, True]


def test_a_database_of_a_newer_version_is_left_alone(empty_database_url: str) -> None:
    with Database(empty_database_url) as database:
        database.migrate()
        with database.write() as session:
            session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        assert not database.is_at_head()
        with pytest.raises(DatabaseError, match="revision '9999', which this version of Ghostwatt does not"):
            database.migrate()


def test_an_unknown_revision_is_refused(database: Database) -> None:
    with pytest.raises(DatabaseError, match="there is no revision 'abc'; the revisions are 0001"):
        database.migrate("abc")


def test_a_migration_that_fails_changes_nothing(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from alembic import op

    create, made = op.create_table, []

    def fail_on_third(*args: object, **options: object) -> object:
        made.append(args[0])
        if len(made) == 3:
            raise RuntimeError("the disk is full")
        return create(*args, **options)  # type: ignore[arg-type]

    with Database(empty_database_url) as database:
        monkeypatch.setattr(op, "create_table", fail_on_third)
        with pytest.raises(RuntimeError, match="the disk is full"):
            database.migrate()
        monkeypatch.undo()
        with database.connection() as connection:
            assert inspect(connection).get_table_names() == []
        database.migrate()
        assert database.is_at_head()


def test_foreign_keys_are_on_again_after_a_migration_of_sqlite(tmp_path: Path) -> None:
    with Database(f"sqlite:///{tmp_path}/a.db") as database:
        database.migrate()
        with database.connection() as connection:
            assert connection.execute(text("PRAGMA foreign_keys")).scalar_one() == 1


def test_revisions_are_numbered_in_one_line() -> None:
    numbers = [_revision(file) for file in VERSIONS]
    assert numbers == [f"{number:04d}" for number in range(1, len(numbers) + 1)]
    assert revisions.newest() == numbers[-1]


def test_leases_work_on_a_database_that_was_migrated_down_and_up(empty_database_url: str) -> None:
    with Database(empty_database_url) as database:
        database.migrate()
        database.migrate("base")
        database.migrate()
        identifier, lease, job = begun(database)
        deliver(database, job, job.everything())
        assert experiments.get(database, identifier).state == "succeeded"
        assert not leases.renew(database, lease, 1)


def _run_states(session: Session) -> dict[str, int]:
    return dict(session.execute(text("SELECT state, count(*) FROM runs GROUP BY state")).all())


def _structure(inspector: object) -> dict[str, object]:
    structure: dict[str, object] = {}
    for name in Base.metadata.tables:
        structure[name] = {
            "checks": sorted(str(check["name"]) for check in inspector.get_check_constraints(name)),  # type: ignore[attr-defined]
            "parents": sorted(
                (tuple(key["constrained_columns"]), key["referred_table"], key["options"].get("ondelete"))
                for key in inspector.get_foreign_keys(name)  # type: ignore[attr-defined]
            ),
            "unique": sorted(
                tuple(unique["column_names"])
                for unique in inspector.get_unique_constraints(name)  # type: ignore[attr-defined]
            ),
            "indexes": sorted(
                (str(index["name"]), tuple(index["column_names"]))
                for index in inspector.get_indexes(name)  # type: ignore[attr-defined]
                if not index.get("duplicates_constraint")
            ),
            "key": inspector.get_pk_constraint(name)["constrained_columns"],  # type: ignore[attr-defined]
        }
    return structure


def _assert_foreign_keys_hold(database: Database) -> None:
    if database.is_sqlite:
        with database.read() as session:
            assert session.execute(text("PRAGMA foreign_key_check")).all() == []


def _has(database: Database, table: str) -> bool:
    with database.connection() as connection:
        return inspect(connection).has_table(table)


def _revision(file: Path) -> str:
    found = re.search(r'^revision: str = "(\w+)"', file.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def _migrate(url: str) -> bool:
    with Database(url) as database:
        database.migrate()
        return database.is_at_head()


def test_the_newest_revision_is_known_without_alembic() -> None:
    assert revisions.newest() == ScriptDirectory(str(revisions.folder())).get_current_head()
