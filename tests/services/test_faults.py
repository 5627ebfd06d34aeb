"""Processes that die in the middle: nothing is lost, nothing lands twice."""

import multiprocessing
import time
from pathlib import Path

from phantom_core.protocol import EVENT_ADAPTER, Event, EventBatch
from services import experiments, ingest
from services.database import Database
from tests.services.rows import snapshot
from tests.services.simulated_job import begun, deliver, spec

DEADLINE_S = 240.0


def test_a_service_killed_while_it_ingests_has_whole_batches_and_takes_the_rest(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    undisturbed, _, job = begun(database, spec())
    deliver(database, job, job.everything())
    identifier, _, job = begun(database, spec())
    events = job.everything()
    spool = tmp_path / "events"
    spool.write_bytes(b"\n".join(event.model_dump_json().encode() for event in events))
    process = multiprocessing.get_context("spawn").Process(
        target=_ingest_one_by_one, args=(database_url, identifier, str(spool))
    )
    process.start()
    deadline = time.monotonic() + DEADLINE_S
    while _landed(database, identifier) < len(events) // 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.join()
    # PostgreSQL may still be committing what it was sent before.
    landed = _landed(database, identifier)
    assert len(events) // 3 <= landed < len(events), "it was to be killed in the middle"
    result = deliver(database, job, events)
    assert result.accepted + result.duplicates == len(events)
    assert landed <= result.duplicates <= landed + 1
    assert experiments.get(database, identifier).state == "succeeded"
    assert snapshot(database, identifier) == snapshot(database, undisturbed)


def _landed(database: Database, identifier: str) -> int:
    from sqlalchemy import func, select

    from services.tables import Event as Row

    with database.read() as session:
        return session.execute(
            select(func.count())
            .select_from(Row)
            .where(Row.experiment_id == identifier, Row.source != "service")
        ).scalar_one()


def _ingest_one_by_one(url: str, identifier: str, spool: str) -> None:
    events: list[Event] = [
        EVENT_ADAPTER.validate_json(line) for line in Path(spool).read_bytes().splitlines()
    ]
    with Database(url) as database:
        for number, event in enumerate(events, 1):
            if number == len(events):
                time.sleep(10 * DEADLINE_S)  # to be killed before
            ingest.ingest(database, EventBatch(experiment_id=identifier, events=(event,)))
