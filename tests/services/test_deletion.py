"""Deletion and retention: in steps, complete, resumed by whoever comes next."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from services import deletion, experiments, heartbeats, housekeeping, power_history, runs
from services.columns import Base
from services.database import Database, now
from services.errors import NotFound
from services.tables import BoardStateBlock, Device, Experiment, Heartbeat, PowerSample
from tests.services.simulated_job import Figures, ran, spec

KEPT = {"idempotency_keys", "heartbeats", "queue_turns", "switches"}
"""Tables whose rows belong to no experiment."""


def rows(database: Database) -> dict[str, int]:
    """Rows by table."""
    with database.read() as session:
        return {
            name: session.execute(select(func.count()).select_from(table)).scalar_one()
            for name, table in Base.metadata.tables.items()
        }


def test_nothing_of_a_deleted_experiment_is_left_and_others_are_untouched(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = ran(database)
    before = rows(database)
    doomed = ran(database)
    monkeypatch.setattr(deletion, "ROWS_AT_ONCE", 20)
    assert experiments.request_delete(database, doomed)
    assert rows(database) == before
    assert experiments.get(database, kept).runs == {"succeeded": 6}


def test_a_deletion_that_was_interrupted_is_finished_by_the_sweep(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    identifier = ran(database)

    def die(*_arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(deletion, "_delete_in_steps", die)
    with pytest.raises(KeyboardInterrupt):
        experiments.request_delete(database, identifier)
    monkeypatch.undo()
    assert experiments.get(database, identifier).delete_requested_at is not None
    assert housekeeping.sweep(database).deleted == 1
    assert housekeeping.sweep(database).deleted == 0
    with pytest.raises(NotFound):
        experiments.get(database, identifier)


def test_old_power_samples_go_and_summaries_stay(database: Database) -> None:
    old, new = ran(database), ran(database)
    with database.write() as session:
        long_ago = now(session) - timedelta(days=31)
        session.execute(update(Experiment).where(Experiment.id == old).values(finished_at=long_ago))
    before = runs.get(database, f"{old}-r000-a00")
    swept = housekeeping.sweep(database)
    assert (swept.pruned, swept.joined) == (0, 4)
    assert housekeeping.sweep(database, power_retention_days=30).pruned == 2
    assert housekeeping.sweep(database, power_retention_days=30).pruned == 0
    assert runs.get(database, f"{old}-r000-a00") == before
    assert power_history.power_history(database, f"{old}-r000-a00").series == ()
    assert len(power_history.power_history(database, f"{new}-r000-a00").series) == 2
    with database.read() as session:
        assert session.execute(select(func.sum(PowerSample.sample_count))).scalar_one() == 6 * 2 * 2 * 101


def test_board_states_whose_power_went_before_a_crash_go_too(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(database, spec(), {"phantom": Figures(power_mw=50_000.0)})
    with database.write() as session:
        session.execute(update(Experiment).values(finished_at=now(session) - timedelta(days=31)))
        for device in session.scalars(select(Device.key)).all():
            session.add(
                BoardStateBlock(
                    device_key=device,
                    experiment_attempt=1,
                    started_at=now(session),
                    started_monotonic_s=0.0,
                    ended_monotonic_s=1.0,
                    states=[],
                )
            )

    def states() -> int:
        with database.read() as session:
            return session.execute(select(func.count()).select_from(BoardStateBlock)).scalar_one()

    delete_in_steps = deletion._delete_in_steps

    def crash(db: Database, table: type[Base], *columns: Any) -> int:
        if table is BoardStateBlock:
            raise KeyboardInterrupt
        return delete_in_steps(db, table, *columns)

    monkeypatch.setattr(deletion, "_delete_in_steps", crash)
    with pytest.raises(KeyboardInterrupt):
        deletion.prune_power(database, 30)
    monkeypatch.undo()
    before = states()
    while deletion.prune_power(database, 30):
        pass
    assert (before, states()) == (2, 0)


def test_heartbeats_tell_who_is_alive(database: Database) -> None:
    heartbeats.beat(database, "a", {"cluster": "down"})
    heartbeats.beat(database, "b")
    heartbeats.beat(database, "a", {"cluster": "up"})
    alive = heartbeats.alive(database, within_s=60)
    assert {(beat.owner, tuple(beat.state.items())) for beat in alive} == {
        ("a", (("cluster", "up"),)),
        ("b", ()),
    }
    assert all(beat.age_s < 60 for beat in alive)
    with database.write() as session:
        session.execute(
            update(Heartbeat).where(Heartbeat.owner == "b").values(at=now(session) - timedelta(days=2))
        )
    assert [beat.owner for beat in heartbeats.alive(database, within_s=60)] == ["a"]
    heartbeats.beat(database, "a")
    with database.read() as session:
        assert session.scalars(select(Heartbeat.owner)).all() == ["a"]
