"""What watchers are told: each thing once, in order, whoever else writes at the same time."""

import pytest

from services import experiments, leases, watching
from services.database import Database
from services.errors import NotFound, QueryError
from services.moves import lock_experiment, log
from services.states import ExperimentState
from services.views import Occurrence
from services.watching import Known
from tests.services.simulated_job import begun, deliver, ran, spec


def kinds(database: Database, identifier: str, after: int = 0) -> list[str]:
    found = watching.occurrences(database, identifier, after)
    return [each.kind if each.kind != "state" else str(each.data["to"]) for each in found]


def test_a_whole_experiment_is_told_in_order(database: Database) -> None:
    identifier, _, job = begun(database)
    for event in job.everything():
        deliver(database, job, [event])
    found = watching.occurrences(database, identifier, 0)
    assert [each.id for each in found] == sorted({each.id for each in found})
    told = kinds(database, identifier)
    assert told[:4] == ["queued", "leased", "attempt", "starting"]
    assert told[-1] == "succeeded"
    assert [each.is_last for each in found] == [False] * (len(found) - 1) + [True]
    assert told.count("run_finished") == 6
    rounds = [each.data for each in found if each.kind == "round_finished"]
    assert rounds == [{"round": number, "rounds": 3} for number in range(3)]
    of_runs = {each.run_id for each in found if each.kind == "run_finished"}
    assert of_runs == {run.run_id for run in job.assignment.runs}


def test_a_round_is_told_when_its_last_run_ended_and_only_once(database: Database) -> None:
    identifier, _, job = begun(database)
    events = job.everything()
    ends = [event for event in events if event.payload.kind == "run_finished"]
    deliver(database, job, [event for event in events if event.payload.kind != "experiment_finished"][:-1])
    assert kinds(database, identifier).count("round_finished") == 2
    deliver(database, job, ends)
    deliver(database, job, ends)
    assert kinds(database, identifier).count("round_finished") == 3


def test_what_changed_nothing_is_not_told(database: Database) -> None:
    identifier, lease, job = begun(database)
    leases.begin_attempt(database, lease)
    before = kinds(database, identifier)
    deliver(database, job, job.everything())
    assert kinds(database, identifier) == before


def test_a_position_says_where_the_log_stands(database: Database) -> None:
    identifier = experiments.submit(database, spec())
    position = watching.position(database, identifier)
    assert position.end is None
    (queued,) = watching.occurrences(database, identifier, 0)
    assert position.last == queued.id
    assert watching.position(database, identifier, queued.id) == position
    experiments.request_cancel(database, identifier)
    ended = watching.position(database, identifier)
    assert ended.end == ended.last > queued.id


def test_what_is_no_occurrence_of_the_experiment_is_refused(database: Database) -> None:
    mine, other = experiments.submit(database, spec()), experiments.submit(database, spec())
    theirs = watching.position(database, other).last
    for after in (theirs, theirs + 1_000):
        with pytest.raises(QueryError, match="no event of"):
            watching.position(database, mine, after)
    with pytest.raises(NotFound):
        watching.position(database, "exp-none")


def test_only_what_changed_is_read(database: Database) -> None:
    quiet, busy, gone = (experiments.submit(database, spec()) for _ in range(3))

    def known(identifier: str) -> Known:
        position = watching.position(database, identifier)
        return Known(position.version, position.last)

    seen = {identifier: known(identifier) for identifier in (quiet, busy, gone)}
    assert watching.changes(database, seen) == {}
    experiments.request_cancel(database, busy)
    experiments.request_delete(database, gone)
    changed = watching.changes(database, seen)
    assert set(changed) == {busy, gone}
    assert changed[gone].version is None
    assert [each.kind for each in changed[busy].occurrences] == ["cancel_requested", "state"]


def test_a_transaction_that_commits_later_with_smaller_keys_is_not_missed(database: Database) -> None:
    """PostgreSQL hands keys out before it commits; across experiments they become visible out of order."""
    if database.is_sqlite:
        pytest.skip("SQLite has one writer at a time")
    slow, quick = experiments.submit(database, spec()), experiments.submit(database, spec())
    seen = {}
    for identifier in (slow, quick):
        position = watching.position(database, identifier)
        seen[identifier] = Known(position.version, position.last)
    with database.write() as session:
        experiment = lock_experiment(session, slow)
        assert experiment is not None
        log(session, experiment, "cancel_requested", {}, moment=experiment.submitted_at)
        session.flush()
        experiments.request_cancel(database, quick)
        first = watching.changes(database, seen)
        assert set(first) == {quick}
        seen[quick] = Known(first[quick].version or 0, first[quick].occurrences[-1].id)
    second = watching.changes(database, seen)
    assert set(second) == {slow}
    assert second[slow].occurrences[0].id < seen[quick].last


def test_a_log_longer_than_a_page_is_read_in_pages(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    identifier = ran(database)
    whole = watching.occurrences(database, identifier, 0)
    pages: list[Occurrence] = []
    after = 0
    while page := watching.occurrences(database, identifier, after, limit=4):
        assert len(page) <= 4
        pages += page
        after = page[-1].id
    assert tuple(pages) == whole
    assert experiments.get(database, identifier).state == ExperimentState.SUCCEEDED
