"""Leases: one owner at a time, whoever dies; attempts, keys and ends belong to the owner alone."""

import multiprocessing
import threading
from datetime import timedelta

import pytest
from sqlalchemy import select, text, update

from phantom_core.protocol import Reason
from services import assignments, experiments, keys, leases, moves, queue, runs, switches
from services.database import Database, now
from services.errors import KeyRefused, LeaseLost
from services.keys import Scope
from services.states import ExperimentState
from services.tables import ApiKey, Experiment, ExperimentAttempt
from tests.services.simulated_job import Figures, SimulatedJob, begun, deliver, spec


def expire(database: Database, experiment_id: str) -> None:
    """Lets an experiment's lease run out, as if its dispatcher had been silent."""
    with database.write() as session:
        late = now(session) - timedelta(seconds=1)
        session.execute(
            update(Experiment).where(Experiment.id == experiment_id).values(lease_expires_at=late)
        )


def test_a_claim_takes_the_oldest_and_then_nothing(database: Database) -> None:
    first = experiments.submit(database, spec())
    second = experiments.submit(database, spec())
    taken = [leases.claim(database, "a", 60) for _ in range(3)]
    assert [lease.experiment_id if lease else None for lease in taken] == [first, second, None]
    assert experiments.get(database, first).state == "leased"


def test_higher_priority_goes_first(database: Database) -> None:
    low = experiments.submit(database, spec(resources={"priority": -1}))
    middle = experiments.submit(database, spec())
    high = experiments.submit(database, spec(resources={"priority": 5}))
    assert experiments.get(database, high).priority == 5
    taken = [leases.claim(database, "a", 60) for _ in range(3)]
    assert [lease.experiment_id for lease in taken if lease] == [high, middle, low]


def test_one_caller_with_a_long_queue_does_not_shut_out_the_others(database: Database) -> None:
    mine = [experiments.submit(database, spec(), submitted_by="me") for _ in range(3)]
    yours = experiments.submit(database, spec(), submitted_by="you")
    taken = [leases.claim(database, "a", 60) for _ in range(4)]
    order = [lease.experiment_id for lease in taken if lease]
    assert order == [mine[0], yours, mine[1], mine[2]]


def claimed_and_ended(database: Database) -> list[str]:
    """Takes one at a time from the queue until it is empty, as a service does that has room for one."""
    order = []
    while (lease := leases.claim(database, "a", 60)) is not None:
        order.append(lease.experiment_id)
        leases.finish(database, lease, ExperimentState.FAILED)
    return order


def test_callers_take_turns_where_one_experiment_runs_at_a_time(database: Database) -> None:
    mine = [experiments.submit(database, spec(), submitted_by="me") for _ in range(3)]
    yours = [experiments.submit(database, spec(), submitted_by="you") for _ in range(2)]
    nobodys = experiments.submit(database, spec())
    assert claimed_and_ended(database) == [mine[0], yours[0], nobodys, mine[1], yours[1], mine[2]]
    # Who was served before is remembered, whatever is left of it.
    for identifier in (*mine, *yours, nobodys):
        experiments.request_delete(database, identifier)
    mine = [experiments.submit(database, spec(), submitted_by="me") for _ in range(2)]
    late = experiments.submit(database, spec())
    assert claimed_and_ended(database) == [late, *mine]


def test_who_gives_back_what_has_not_begun_is_next_again(database: Database) -> None:
    mine = experiments.submit(database, spec(), submitted_by="me")
    experiments.submit(database, spec(), submitted_by="you")
    lease = leases.claim(database, "a", 60)
    assert lease is not None
    assert lease.experiment_id == mine
    leases.release(database, lease, message="the queue is paused")
    again = leases.claim(database, "a", 60)
    assert again is not None
    assert again.experiment_id == mine


def test_a_clock_that_is_set_back_makes_nobody_wait_for_its_turn(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = [experiments.submit(database, spec(), submitted_by="me") for _ in range(3)]
    yours = [experiments.submit(database, spec(), submitted_by="you") for _ in range(2)]
    first = leases.claim(database, "a", 60)
    assert first is not None
    leases.finish(database, first, ExperimentState.CANCELLED)
    for module in (leases, moves):
        monkeypatch.setattr(module, "now", lambda session: now(session) - timedelta(hours=1))
    assert claimed_and_ended(database) == [yours[0], mine[1], yours[1], mine[2]]


def test_the_next_is_found_by_an_index_among_thousands(database: Database) -> None:
    for number in range(3):
        experiments.submit(database, spec(), submitted_by=f"key-{number}")
    columns = [column.name for column in Experiment.__table__.columns]
    changed = {"id": "id || '-' || n", "submitted_by": "submitted_by || (n % 5)"}
    values = ", ".join(changed.get(name, name) for name in columns)
    with database.write() as session:
        session.execute(
            text(
                "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 2000) "
                f"INSERT INTO experiments ({', '.join(columns)}) SELECT {values} FROM experiments, numbers"
            )
        )
    with database.connection() as connection:
        # As PostgreSQL does by itself after a while.
        alone = connection.execution_options(isolation_level="AUTOCOMMIT")
        alone.exec_driver_sql("ANALYZE" if database.is_sqlite else "VACUUM ANALYZE experiments")
    explain = "EXPLAIN QUERY PLAN " if database.is_sqlite else "EXPLAIN "
    for statement in (queue.highest_priority(5), queue.turns(0), queue.next_of(0, "key-14")):
        with database.read() as session:
            words = statement.compile(session.connection(), compile_kwargs={"literal_binds": True})
            plan = "\n".join(map(str, session.connection().exec_driver_sql(explain + str(words)).all()))
        assert "ix_experiments_queue" in plan, plan
        assert "Seq Scan on experiments" not in plan, plan
    for _ in range(18):
        leases.claim(database, "a", 60)
    with database.read() as session:
        served = session.scalars(select(Experiment.submitted_by).where(Experiment.state == "leased")).all()
    assert len(set(served)) == len(served) == 18, "each caller once"


def test_a_paused_queue_starts_nothing_but_silent_work_is_taken_over(database: Database) -> None:
    begun_id, _, _ = begun(database)
    experiments.submit(database, spec())
    switches.pause_queue(database, "maintenance")
    assert switches.queue_pause(database) == "maintenance"
    assert leases.claim(database, "b", 60) is None
    expire(database, begun_id)
    lease = leases.claim(database, "b", 60)
    assert lease is not None
    assert lease.experiment_id == begun_id
    switches.resume_queue(database)
    assert leases.claim(database, "b", 60) is not None


def test_a_lease_that_runs_out_is_taken_over_with_its_state(database: Database) -> None:
    identifier, old, _ = begun(database)
    assert leases.claim(database, "b", 60) is None
    expire(database, identifier)
    new = leases.claim(database, "b", 60)
    assert new is not None
    assert new.state == ExperimentState.STARTING
    assert new.attempt == 1
    assert new.ray_job_id == identifier
    assert new.token != old.token


def test_whoever_lost_the_lease_changes_nothing_any_more(database: Database) -> None:
    identifier, old, _ = begun(database)
    expire(database, identifier)
    assert leases.claim(database, "b", 60) is not None
    before = experiments.get(database, identifier)
    assert not leases.renew(database, old, 60)
    assert not leases.release(database, old)
    assert not leases.mark_starting(database, old, "other-job")
    assert not leases.finish(database, old, ExperimentState.FAILED)
    with pytest.raises(LeaseLost):
        leases.begin_attempt(database, old)
    with pytest.raises(LeaseLost):
        leases.follow(database, old)
    moving = {"timings": before.timings, "phase": before.phase}
    assert experiments.get(database, identifier).model_copy(update=moving) == before


def test_a_lease_that_ran_out_and_was_not_taken_over_can_be_renewed(database: Database) -> None:
    identifier, lease, _ = begun(database)
    expire(database, identifier)
    assert leases.renew(database, lease, 60)
    assert leases.claim(database, "b", 60) is None


def test_an_experiment_given_back_is_queued_again_and_free_for_others_at_once(database: Database) -> None:
    identifier = experiments.submit(database, spec())
    lease = leases.claim(database, "a", 60)
    assert lease is not None
    assert leases.release(database, lease, message="the service ends")
    found = experiments.get(database, identifier)
    assert (found.state, found.message) == ("queued", "the service ends")
    assert leases.claim(database, "b", 60) is not None


def test_a_running_experiment_given_back_is_free_for_others_at_once(database: Database) -> None:
    identifier, lease, _ = begun(database)
    assert leases.release(database, lease)
    assert experiments.get(database, identifier).state == "starting"
    assert leases.claim(database, "b", 60) is not None


def test_an_attempt_has_a_key_of_its_own_and_only_its_hash_is_stored(database: Database) -> None:
    experiments.submit(database, spec())
    lease = leases.claim(database, "a", 60)
    assert lease is not None
    first = leases.begin_attempt(database, lease)
    assert first.attempt == 1
    caller = keys.verify(database, first.token, Scope.INGEST, experiment_id=lease.experiment_id)
    assert caller.experiment_id == lease.experiment_id
    secret = first.token.split("_", 2)[2]  # which may have underscores of its own
    with database.read() as session:
        for row in session.scalars(select(ApiKey)):
            assert secret not in repr(vars(row))
    assert first.token not in repr(first)


def test_another_attempt_voids_the_key_of_the_last(database: Database) -> None:
    identifier, lease, _ = begun(database)
    first = leases.begin_attempt(database, lease)
    second = leases.begin_attempt(database, lease, reason=Reason.WORKER_LOST, message="a rank died")
    with pytest.raises(KeyRefused):
        keys.verify(database, first.token, Scope.INGEST, experiment_id=identifier)
    keys.verify(database, second.token, Scope.INGEST, experiment_id=identifier)


def test_another_attempt_makes_what_has_not_ended_and_keeps_what_has(database: Database) -> None:
    identifier, lease, job = begun(database)
    first, second = job.assignment.runs[:2]
    deliver(database, job, [*job.started(), *job.run(first), *list(job.run(second))[:7]])
    assert experiments.get(database, identifier).runs == {"queued": 4, "running": 1, "succeeded": 1}
    token = leases.begin_attempt(database, lease, reason=Reason.WORKER_LOST, message="a rank died")
    found = experiments.get(database, identifier)
    assert (found.state, found.attempt, token.attempt) == ("leased", 2, 2)
    assert found.runs == {"queued": 5, "succeeded": 1}
    again = assignments.assignment(database, identifier)
    assert again.attempt == 2
    assert [run.run_id for run in again.runs] == [run.run_id for run in job.assignment.runs[1:]]
    assert {run.attempt for run in again.runs} == {2}
    lost, made = runs.get(database, second.run_id).attempts
    assert (lost.outcome, lost.reason, lost.message) == ("failed", "worker_lost", "a rank died")
    assert lost.energy_mj == pytest.approx(2 * (50_000 + 1_000_000))
    assert (made.attempt, made.outcome) == (2, None)
    with database.read() as session:
        ended = session.get_one(ExperimentAttempt, (identifier, 1))
        assert (ended.reason, ended.message) == ("worker_lost", "a rank died")


def test_the_second_attempt_can_finish_the_experiment(database: Database) -> None:
    identifier, lease, job = begun(database)
    deliver(database, job, [*job.started(), *job.run(job.assignment.runs[0])])
    leases.begin_attempt(database, lease, reason=Reason.WORKER_LOST)
    leases.mark_starting(database, lease, f"{identifier}-attempt-2")
    second = SimulatedJob(assignments.assignment(database, identifier), clock_s=5_000)
    deliver(database, second, second.everything())
    found = experiments.get(database, identifier)
    assert (found.state, found.runs) == ("succeeded", {"succeeded": 6})


def test_marking_the_start_of_a_job_that_has_reported_already_keeps_it_running(database: Database) -> None:
    identifier = experiments.submit(database, spec())
    lease = leases.claim(database, "a", 60)
    assert lease is not None
    leases.begin_attempt(database, lease)
    job = SimulatedJob(assignments.assignment(database, identifier))
    deliver(database, job, job.started())
    assert experiments.get(database, identifier).state == "running"
    assert leases.mark_starting(database, lease, "job-7", "http://ray/7")
    found = experiments.get(database, identifier)
    assert (found.state, found.ray_job_id) == ("running", "job-7")
    assert found.ray_dashboard_url == "http://ray/7"


def test_an_end_is_final(database: Database) -> None:
    identifier, lease, _ = begun(database)
    assert leases.finish(database, lease, ExperimentState.LOST, Reason.JOB_UNKNOWN, "Ray forgot it")
    found = experiments.get(database, identifier)
    assert (found.state, found.reason, found.message) == ("lost", "job_unknown", "Ray forgot it")
    assert found.runs == {"cancelled": 6}
    assert not leases.finish(database, lease, ExperimentState.SUCCEEDED)
    assert not leases.renew(database, lease, 60)
    assert experiments.get(database, identifier).state == "lost"
    assert leases.claim(database, "b", 60) is None


def test_only_a_terminal_state_ends_an_experiment(database: Database) -> None:
    _, lease, _ = begun(database)
    with pytest.raises(ValueError, match="running ends nothing"):
        leases.finish(database, lease, ExperimentState.RUNNING)


def test_success_without_a_successful_run_is_no_success(database: Database) -> None:
    identifier, lease, _ = begun(database)
    leases.finish(database, lease, ExperimentState.SUCCEEDED)
    found = experiments.get(database, identifier)
    assert (found.state, found.reason) == ("failed", "all_runs_failed")


def test_the_key_of_an_ended_experiment_works_on_for_late_events_and_then_expires(database: Database) -> None:
    identifier, lease, _ = begun(database)
    token = leases.begin_attempt(database, lease).token
    leases.finish(database, lease, ExperimentState.FAILED)
    keys.verify(database, token, Scope.INGEST, experiment_id=identifier)
    with database.write() as session:
        late = now(session) - timedelta(seconds=1)
        assert session.scalars(select(ApiKey.expires_at)).all()[-1] is not None
        session.execute(update(ApiKey).values(expires_at=late))
    with pytest.raises(KeyRefused):
        keys.verify(database, token, Scope.INGEST, experiment_id=identifier)


def test_threads_that_claim_at_once_never_get_the_same(database: Database) -> None:
    made = {experiments.submit(database, spec(measurement={"rounds": 1})) for _ in range(12)}
    taken: list[str] = []
    go = threading.Barrier(4)

    def claim_all(owner: str) -> None:
        go.wait()
        while (lease := leases.claim(database, owner, 60)) is not None:
            taken.append(lease.experiment_id)

    threads = [threading.Thread(target=claim_all, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 12
    assert set(taken) == made


def test_processes_that_claim_at_once_never_get_the_same(database: Database, database_url: str) -> None:
    made = {experiments.submit(database, spec(measurement={"rounds": 1})) for _ in range(10)}
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        shares = pool.starmap(_claim_all, [(database_url, "p0"), (database_url, "p1")])
    taken = [identifier for share in shares for identifier in share]
    assert len(taken) == 10
    assert set(taken) == made


def test_an_abandoned_experiment_is_taken_over_by_one_only(database: Database) -> None:
    identifier, _, _ = begun(database)
    expire(database, identifier)
    taken: list[str] = []
    go = threading.Barrier(4)

    def claim(owner: str) -> None:
        go.wait()
        lease = leases.claim(database, owner, 60)
        if lease is not None:
            taken.append(owner)

    threads = [threading.Thread(target=claim, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 1


def _claim_all(url: str, owner: str) -> list[str]:
    taken = []
    with Database(url) as database:
        while (lease := leases.claim(database, owner, 60)) is not None:
            taken.append(lease.experiment_id)
    return taken


def test_a_job_that_reports_while_nobody_holds_the_lease_is_running_once_adopted(database: Database) -> None:
    identifier = experiments.submit(database, spec())
    lease = leases.claim(database, "a", 60)
    assert lease is not None
    leases.begin_attempt(database, lease)
    job = SimulatedJob(assignments.assignment(database, identifier))
    assert leases.release(database, lease)
    deliver(database, job, job.started())
    assert experiments.get(database, identifier).state == "queued"
    adopted = leases.claim(database, "b", 60)
    assert adopted is not None
    assert leases.mark_starting(database, adopted, identifier)
    found = experiments.get(database, identifier)
    assert found.state == "running"
    assert [(each.attempt, each.ended_at) for each in found.attempts] == [(1, None)]


def test_a_job_that_finishes_while_nobody_holds_the_lease_has_finished(database: Database) -> None:
    identifier = experiments.submit(database, spec())
    lease = leases.claim(database, "a", 60)
    assert lease is not None
    leases.begin_attempt(database, lease)
    job = SimulatedJob(assignments.assignment(database, identifier))
    assert leases.release(database, lease)
    deliver(database, job, job.everything())
    found = experiments.get(database, identifier)
    assert (found.state, found.runs) == ("succeeded", {"succeeded": 6})
    assert leases.claim(database, "b", 60) is None


def test_samples_of_another_attempt_are_not_mixed_in(database: Database) -> None:
    """A host that was started anew counts its monotonic clock from the beginning again."""
    _, lease, job = begun(database)
    run = job.assignment.runs[0]
    events = list(job.run(run, Figures(power_mw=90_000.0)))
    deliver(database, job, [*job.started(), *events[:-1]])
    leases.begin_attempt(database, lease, reason=Reason.WORKER_LOST)
    again = SimulatedJob(assignments.assignment(database, lease.experiment_id), clock_s=1_000.05)
    deliver(database, again, [*again.started(), *again.run(run.model_copy(update={"attempt": 2}))])
    found = runs.get(database, run.run_id)
    assert found.energy_integral_mj == pytest.approx(4_000_000.0)
    assert found.sample_count == 4 * 101
    assert found.flags == ()


def test_every_start_of_a_job_is_told(database: Database) -> None:
    identifier, lease, _ = begun(database)
    leases.begin_attempt(database, lease, reason=Reason.WORKER_LOST, message="a rank died")
    first, second = experiments.get(database, identifier).attempts
    assert (first.attempt, first.ray_job_id, first.reason) == (1, identifier, "worker_lost")
    assert first.ended_at is not None
    assert (second.attempt, second.ray_job_id, second.ended_at) == (2, None, None)


def test_following_tells_all_that_a_dispatcher_decides_by(database: Database) -> None:
    identifier, lease, job = begun(database)
    before = leases.follow(database, lease)
    assert (before.state, before.attempt, before.ray_job_id) == ("starting", 1, identifier)
    assert (before.running_at, before.last_event_at, before.runs_left) == (None, None, 6)
    deliver(database, job, [*job.started(), *job.run(job.assignment.runs[0])])
    after = leases.follow(database, lease)
    assert after.runs_left == 5
    assert after.running_at is not None
    assert after.last_event_at is not None
    assert abs(after.now - after.last_event_at) < timedelta(minutes=1)
