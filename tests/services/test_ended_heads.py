"""A head is ended in order with what ran on it: that goes back into the queue, however often, and is not counted."""

from datetime import timedelta
from pathlib import Path

import pytest

from phantom_core.protocol import ExperimentFinished, Reason
from services import assignments, experiments, job_logs, leases
from services.database import Database
from services.ended_heads import put_back
from services.errors import LeaseLost
from services.log_parts import LogPart
from services.states import ExperimentState
from services.tables import Experiment, ExperimentAttempt, WorkerGroup
from tests.services.following_bench import Bench
from tests.services.simulated_job import deliver, spec

HEAD = "http://ray"
"""Where the bench's cluster is."""


@pytest.fixture
def bench(database: Database, tmp_path: Path) -> Bench:
    return Bench(database, tmp_path)


def next_service(bench: Bench) -> None:
    """Another one takes the experiment from the queue, on a head that knows no job."""
    bench.cluster.jobs.clear()
    lease = leases.claim(bench.db, "b", 60)
    assert lease is not None
    assert lease.experiment_id == bench.id
    bench.follower = bench.followed_by(lease)


def test_what_ran_there_goes_on_after_any_number_of_restarts_and_says_why_each_attempt_ended(
    bench: Bench,
) -> None:
    ends = 5
    for _ in range(ends):
        bench.running()
        assert put_back(bench.db, HEAD) == [bench.id]
        assert bench.ended_as == ("queued", "service_ended")
        assert "told to end" in (bench.experiment.message or "")
        next_service(bench)
    job = bench.running()
    deliver(bench.db, job, [event for run in job.assignment.runs for event in job.run(run)])
    deliver(bench.db, job, job.finished())
    assert bench.ended_as == ("succeeded", None)
    assert [each.reason for each in bench.experiment.attempts] == ["service_ended"] * ends + [None]


def test_the_whole_deadline_does_not_run_while_no_service_does(bench: Bench) -> None:
    bench.running()
    bench.ages(5_000)
    put_back(bench.db, HEAD)
    with bench.db.write() as session:
        ended = session.get_one(ExperimentAttempt, (bench.id, 1))
        assert ended.leased_at is not None
        assert ended.ended_at is not None
        ended.leased_at -= timedelta(seconds=50_000)
        ended.ended_at -= timedelta(seconds=50_000)
    next_service(bench)
    bench.running()
    assert bench.experiment.state == "running"
    bench.ages(10_000)
    bench.follower = bench.followed_by(bench.follower.lease)
    bench.step()
    assert bench.cluster.stopped == [f"{bench.id}-attempt-2"], "5,000 s and 10,000 s are more than 14,400 s"


def test_what_ran_there_goes_on_before_others_begin(bench: Bench) -> None:
    for _ in range(2):
        experiments.submit(bench.db, spec(), submitted_by="another")
    bench.running()
    put_back(bench.db, HEAD)
    next_service(bench)


def test_its_log_says_that_nothing_more_will_come(bench: Bench) -> None:
    bench.running()
    job_logs.store(bench.db, bench.id, 1, LogPart(0, b"a line\n"), ended=False)
    put_back(bench.db, HEAD)
    assert job_logs.end(bench.db, bench.id, 1).is_complete


def test_faults_count_as_before(bench: Bench) -> None:
    for _ in range(2):
        bench.running()
        put_back(bench.db, HEAD)
        next_service(bench)
        bench.running()
        bench.cluster.jobs.clear()
        bench.step()
    assert bench.ended_as == ("lost", "job_unknown")
    reasons = [each.reason for each in bench.experiment.attempts]
    assert reasons[:3] == ["service_ended", "job_unknown", "service_ended"]


def test_what_it_measured_stays_with_the_attempt(bench: Bench) -> None:
    job = bench.running()
    first, second = job.assignment.runs[:2]
    deliver(bench.db, job, list(job.run(first)))
    deliver(bench.db, job, list(job.run(second))[:-1])
    put_back(bench.db, HEAD)
    next_service(bench)
    bench.step()
    again = assignments.assignment(bench.db, bench.id)
    assert (again.runs[0].run_id, again.runs[0].attempt) == (second.run_id, 2), "the first is not made again"


def test_who_asked_to_cancel_gets_that(bench: Bench) -> None:
    bench.running()
    experiments.request_cancel(bench.db, bench.id)
    assert put_back(bench.db, HEAD) == []
    assert bench.ended_as == ("cancelled", "cancelled_by_user")


def test_who_asked_to_delete_gets_that(bench: Bench) -> None:
    bench.running()
    experiments.request_delete(bench.db, bench.id)
    put_back(bench.db, HEAD)
    with bench.db.read() as session:
        assert session.get(Experiment, bench.id) is None


def test_a_fault_that_the_job_has_told_counts(bench: Bench) -> None:
    job = bench.running()
    told = ExperimentFinished(outcome="failed", reason=Reason.WORKER_LOST, message="a rank died")
    bench.reports(told, job)
    assert put_back(bench.db, HEAD) == []
    bench.cluster.jobs.clear()
    bench.step()
    assert bench.experiment.attempts[0].reason == "worker_lost"


def test_an_end_that_was_decided_is_carried_out(bench: Bench) -> None:
    bench.running()
    bench.ages(20_000)
    bench.follower = bench.followed_by(bench.follower.lease)
    bench.step()
    assert bench.cluster.stopped == [bench.id], "its job is being stopped for the deadline"
    bench.follower.conclude()
    assert put_back(bench.db, HEAD) == []
    assert bench.ended_as == ("failed", "deadline")


def test_nothing_else_is_touched(bench: Bench) -> None:
    """What runs on another head, what waits, and what has ended; the service that left holds nothing any more."""
    bench.running()
    elsewhere, lease = bench.id, bench.follower.lease
    assert put_back(bench.db, "http://ra") == put_back(bench.db, "http://ray:1") == []
    assert bench.experiment.state == "running"
    put_back(bench.db, HEAD)
    with pytest.raises(LeaseLost):
        leases.follow(bench.db, lease)
    with bench.db.read() as session:
        assert session.get(WorkerGroup, elsewhere) is None, "its job is gone"
    assert put_back(bench.db, HEAD) == []
    assert bench.experiment.state == ExperimentState.QUEUED
