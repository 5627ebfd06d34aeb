"""One experiment followed step by step, with a cluster that answers what the test tells it to."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy import select, update

from phantom_core.capacity import Capacity
from phantom_core.protocol import ExperimentFinished, JobVariable, Reason
from services import experiments, following, heartbeats, keys, leases, switches
from services.cluster import Cluster, JobState
from services.columns import Base
from services.database import Database, now
from services.errors import KeyRefused
from services.following import job_id
from services.keys import Scope
from services.ray_requests import ClusterError, ClusterRefused
from services.tables import Experiment, Heartbeat
from tests.services.following_bench import UNREACHABLE, Bench, FakeCluster
from tests.services.simulated_job import deliver, spec


@pytest.fixture
def bench(sqlite_database: Database, tmp_path: Path) -> Bench:
    return Bench(sqlite_database, tmp_path)


def test_an_experiment_is_submitted_under_its_own_id_and_ends_with_its_job(bench: Bench) -> None:
    job = bench.running()
    assert bench.cluster.submitted == [bench.id]
    assert bench.experiment.ray_dashboard_url == f"http://ray/{bench.id}"
    token = bench.cluster.tokens[bench.id]
    assert keys.verify(bench.db, token, Scope.INGEST, experiment_id=bench.id)
    assert bench.step()
    deliver(bench.db, job, [event for run in job.assignment.runs for event in job.run(run)])
    deliver(bench.db, job, job.finished())
    assert not bench.step()
    assert bench.experiment.state == "succeeded"


def test_a_refused_submission_whose_id_is_known_is_adopted(bench: Bench) -> None:
    bench.cluster.submitting, bench.cluster.gets_through = [ClusterRefused("the id is in use")], True
    assert bench.step()
    assert bench.experiment.state == "starting"
    assert bench.experiment.ray_job_id == bench.id
    assert bench.step()
    assert bench.cluster.submitted == [bench.id]


def test_a_refused_submission_of_an_unknown_id_fails_with_rays_words(bench: Bench) -> None:
    bench.cluster.submitting = [ClusterRefused("no such runtime_env")]
    assert not bench.step()
    assert bench.ended_as == ("failed", Reason.SUBMIT_FAILED)
    assert "no such runtime_env" in (bench.experiment.message or "")


@pytest.mark.parametrize("error", [UNREACHABLE, ClusterError("Ray answered 500")])
@pytest.mark.parametrize("status", [None, UNREACHABLE])
def test_a_submission_without_an_answer_changes_nothing_and_is_made_again(
    bench: Bench, error: Exception, status: Exception | None
) -> None:
    bench.cluster.submitting, bench.cluster.asking = [error], [status]
    assert bench.step()
    assert bench.experiment.state == "leased"
    assert bench.step()
    assert bench.experiment.state == "starting"
    # The same attempt, with the key that the first try may have handed over.
    assert bench.cluster.submitted == [bench.id, bench.id]
    assert keys.verify(bench.db, bench.cluster.tokens[bench.id], Scope.INGEST, experiment_id=bench.id)


def test_a_submission_that_got_through_without_an_answer_is_adopted_later(bench: Bench) -> None:
    bench.cluster.submitting, bench.cluster.gets_through = [UNREACHABLE], True
    bench.cluster.asking = [UNREACHABLE]
    assert bench.step()
    assert bench.experiment.state == "leased"
    assert bench.step()
    assert bench.experiment.state == "starting"
    assert bench.cluster.submitted == [bench.id]


def test_an_unreachable_cluster_is_waited_for_however_long_but_a_failing_one_is_not(bench: Bench) -> None:
    bench.cluster.submitting = [UNREACHABLE] * 10
    for _ in range(10):
        assert bench.step()
        bench.clock_s += 1_000
    assert bench.experiment.state == "leased"
    bench.cluster.submitting = [ClusterError("Ray answered 500: no agent")] * 10
    bench.steps_to_the_end()
    assert bench.ended_as == ("failed", Reason.SUBMIT_FAILED)


@pytest.mark.parametrize("error", [UNREACHABLE, ClusterError("Ray answered 500")])
def test_a_running_experiment_is_left_alone_while_ray_does_not_answer(bench: Bench, error: Exception) -> None:
    bench.running()
    before = bench.experiment
    bench.cluster.asking = [error] * 5
    for _ in range(5):
        assert bench.step()
        bench.clock_s += 1_000
    moving = {"timings": before.timings, "phase": before.phase}
    assert bench.experiment.model_copy(update=moving) == before


def test_with_ray_gone_for_good_an_end_that_is_due_is_told_without_it(
    sqlite_database: Database, tmp_path: Path
) -> None:
    bench = Bench(sqlite_database, tmp_path, spec(resources={"deadline_s": 500}))
    bench.running()
    bench.cluster.asking = [UNREACHABLE] * 10
    for _ in range(5):
        assert bench.step()
        bench.clock_s += 99
    bench.clock_s += 10
    assert not bench.step()
    assert bench.ended_as == ("lost", Reason.DEADLINE)
    assert "no answer for 505 s" in (bench.experiment.message or "")
    assert set(bench.experiment.runs) == {"cancelled"}


def test_a_cancel_does_not_wait_for_ever_for_a_head_that_is_gone(bench: Bench) -> None:
    bench.running()
    experiments.request_cancel(bench.db, bench.id)
    bench.cluster.asking = [UNREACHABLE] * 3
    for _ in range(2):
        assert bench.step()
        bench.clock_s += 51
    assert not bench.step()
    assert bench.ended_as == ("cancelled", Reason.CANCELLED_BY_USER)


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_stepped_wall_clock_ends_nothing(
    sqlite_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    resources = {"deadline_s": 500, "scheduling_deadline_s": 200}
    for number in range(2):
        bench = Bench(sqlite_database, tmp_path / str(number), spec(resources=resources))
        assert bench.step()
        bench.ray_says("RUNNING")
        if number:
            deliver(bench.db, bench.job(), list(bench.job().started()))
        assert bench.step()
        with monkeypatch.context() as stepped:
            stepped.setattr("services.leases.now", lambda session: now(session) + timedelta(hours=hours))
            assert bench.step()
        assert bench.cluster.stopped == []


def test_who_could_not_look_for_as_long_as_a_lease_lasts_counts_silence_anew(
    sqlite_database: Database, tmp_path: Path
) -> None:
    bench = Bench(sqlite_database, tmp_path, lease_ttl_s=30)
    bench.running()
    assert bench.step()
    bench.clock_s += 1_000
    assert bench.step()
    assert bench.cluster.stopped == []


def test_a_job_that_ray_forgot_is_started_again_and_at_last_lost(bench: Bench) -> None:
    bench.running()
    first = bench.cluster.tokens[bench.id]
    bench.cluster.jobs.clear()
    assert bench.step()
    assert bench.experiment.state == "leased"
    with pytest.raises(KeyRefused):
        keys.verify(bench.db, first, Scope.INGEST, experiment_id=bench.id)
    assert bench.step()
    second = job_id(bench.id, 2)
    assert bench.cluster.submitted == [bench.id, second]
    assert keys.verify(bench.db, bench.cluster.tokens[second], Scope.INGEST, experiment_id=bench.id)
    bench.cluster.jobs.clear()
    assert not bench.step()
    assert bench.ended_as == ("lost", Reason.JOB_UNKNOWN)
    assert set(bench.experiment.runs) == {"cancelled"}


def test_a_job_that_failed_without_a_word_is_tried_again_and_then_told_with_its_log(bench: Bench) -> None:
    bench.running()
    bench.ray_says("FAILED", "exit code 1\nTraceback\nValueError: no")
    bench.ray_says("FAILED", "exit code 1\nTraceback\nValueError: no", attempt=2)
    bench.cluster.gets_through = True
    bench.steps_to_the_end()
    assert bench.ended_as == ("failed", Reason.JOB_FAILED)
    assert bench.experiment.message == "the job failed: exit code 1\nTraceback\nValueError: no"
    assert bench.experiment.attempt == 2


def test_a_log_that_no_database_takes_is_stored_without_what_it_does_not(bench: Bench) -> None:
    bench.running()
    for attempt in (1, 2):
        bench.ray_says("FAILED", "bad \x00", attempt=attempt)
    bench.cluster.printed = "x" * 100_000
    bench.steps_to_the_end()
    assert bench.experiment.state == "failed"
    assert "\x00" not in (bench.experiment.message or "")
    assert len(bench.experiment.message or "") < 10_000


SECRETS = (
    f"gw_{'a' * 16}_{'S3cret-_x' * 5}",
    "postgresql://ghostwatt:hunter22@db.internal/ghostwatt",
    "Authorization: Bearer abc.def-ghi~jkl",
)
PARTS = ("S3cret", "hunter22", "abc.def")


def everything(database: Database) -> str:
    """All rows of all tables, as text."""
    with database.read() as session:
        return "\n".join(
            repr(row) for table in Base.metadata.sorted_tables for row in session.execute(select(table)).all()
        )


@pytest.mark.parametrize("padding", ["", "x" * 1_980])
def test_secrets_that_a_job_printed_are_in_no_message(bench: Bench, padding: str) -> None:
    """Nor in the log of what happened; with the padding, the end that is quoted begins within the first of them."""
    bench.running()
    for attempt in (1, 2):
        bench.ray_says("FAILED", f"exit code 1 of {' '.join(SECRETS)}", attempt=attempt)
    bench.cluster.printed = "\n".join((*SECRETS, "the last line" + padding))
    bench.steps_to_the_end()
    assert "the last line" in (bench.experiment.message or "")
    assert "[secret]" in (bench.experiment.message or "")
    assert [part for part in PARTS if part in everything(bench.db)] == []


def test_secrets_that_ranks_report_are_in_no_message(bench: Bench) -> None:
    job = bench.running()
    told = f"no such column; {' '.join(SECRETS)}"
    bench.reports(ExperimentFinished(outcome="failed", reason=Reason.TASK_ERROR, message=told), job)
    bench.ray_says("FAILED")
    bench.steps_to_the_end()
    assert (bench.experiment.message or "").startswith("no such column; gw_aaaaaaaaaaaaaaaa_[secret]")
    assert [part for part in PARTS if part in everything(bench.db)] == []


def test_secrets_in_a_refusal_of_rays_are_in_no_message(bench: Bench) -> None:
    bench.cluster.submitting = [ClusterRefused(f"runtime_env: {' '.join(SECRETS)}")]
    bench.steps_to_the_end()
    assert bench.ended_as == ("failed", Reason.SUBMIT_FAILED)
    assert [part for part in PARTS if part in everything(bench.db)] == []


@pytest.mark.parametrize(
    "reason", [Reason.TASK_ERROR, Reason.ARM_ERROR, Reason.OUT_OF_MEMORY, Reason.ALL_RUNS_FAILED]
)
def test_what_the_user_must_mend_is_not_tried_again(bench: Bench, reason: Reason) -> None:
    job = bench.running()
    bench.reports(ExperimentFinished(outcome="failed", reason=reason, message="no such column"), job)
    bench.ray_says("FAILED")
    bench.steps_to_the_end()
    assert bench.ended_as == ("failed", reason)
    assert bench.experiment.message == "no such column"
    assert bench.cluster.submitted == [bench.id]


@pytest.mark.parametrize("state", ["FAILED", None])
def test_a_reported_fault_of_the_machines_is_tried_again(bench: Bench, state: JobState | None) -> None:
    job = bench.running()
    bench.reports(ExperimentFinished(outcome="failed", reason=Reason.WORKER_LOST, message="rank 1"), job)
    if state is None:
        bench.cluster.jobs.clear()
    else:
        bench.ray_says(state)
    for _ in range(3):
        assert bench.step()
        bench.clock_s += 60
    assert bench.cluster.submitted == [bench.id, job_id(bench.id, 2)]
    assert bench.experiment.state == "starting"


def test_a_job_stopped_from_outside_is_cancelled_and_not_tried_again(bench: Bench) -> None:
    bench.running()
    bench.ray_says("STOPPED")
    bench.steps_to_the_end()
    assert bench.ended_as == ("cancelled", Reason.JOB_STOPPED)
    assert bench.cluster.submitted == [bench.id]
    assert bench.cluster.stopped == []


def test_a_job_that_ended_well_but_never_told_of_its_runs_failed(bench: Bench) -> None:
    bench.running()
    for attempt in (1, 2):
        bench.ray_says("SUCCEEDED", attempt=attempt)
    bench.steps_to_the_end()
    assert bench.ended_as == ("failed", Reason.JOB_FAILED)
    assert "6 runs were never reported" in (bench.experiment.message or "")


def test_the_last_events_of_an_ended_job_have_time_to_arrive(bench: Bench) -> None:
    job = bench.running()
    bench.ray_says("SUCCEEDED")
    for _ in range(3):
        assert bench.step()
        bench.clock_s += following.LATE_EVENTS_S / 3 - 0.1
    assert bench.experiment.state == "running"
    deliver(bench.db, job, [event for run in job.assignment.runs for event in job.run(run)])
    deliver(bench.db, job, job.finished())
    assert not bench.step()
    assert bench.experiment.state == "succeeded"
    assert bench.cluster.submitted == [bench.id]


def test_a_log_in_ray_s_own_message_that_begins_in_the_middle_of_a_secret_is_told_without_it(
    bench: Bench,
) -> None:
    secret = "Q7xK2mZ9vR4tW8yB3nL6pD5sF1gH0jCuEoXiAzTq"
    bench.running()
    for attempt in (1, 2):
        bench.ray_says("FAILED", f"exit code 1, last logs:\n{secret}\n{'a line ' * 2_000}\nthe end", attempt)
    bench.steps_to_the_end()
    assert bench.ended_as == ("failed", Reason.JOB_FAILED)
    message = bench.experiment.message or ""
    assert message.startswith("the job failed: exit code 1, last logs:\n")
    assert secret[20:] not in message


def test_a_job_that_is_over_is_judged_by_its_end_and_not_by_a_deadline(bench: Bench) -> None:
    bench.running()
    assert bench.step()
    bench.ray_says("FAILED", "out of disk")
    bench.ages_while_followed(1e6)
    assert bench.step()
    assert bench.cluster.stopped == []
    for attempt in (1, 2):
        bench.ray_says("FAILED", "out of disk", attempt)
    bench.steps_to_the_end()
    assert bench.ended_as == ("failed", Reason.JOB_FAILED)


def test_a_cancel_before_submission_ends_at_once(bench: Bench) -> None:
    experiments.request_cancel(bench.db, bench.id)
    assert not bench.step()
    assert bench.ended_as == ("cancelled", Reason.CANCELLED_BY_USER)
    assert bench.cluster.submitted == []


@pytest.mark.parametrize("begin", [lambda bench: bench.step(), lambda bench: bench.running()])
def test_a_cancel_stops_the_job_and_ends_only_when_it_is_gone(
    bench: Bench, begin: Callable[[Bench], object]
) -> None:
    begin(bench)
    experiments.request_cancel(bench.db, bench.id)
    for _ in range(5):
        assert bench.step()
    assert bench.cluster.stopped == [bench.id]
    assert bench.experiment.state in {"starting", "running"}
    bench.clock_s += following.STOP_AGAIN_S + 1
    assert bench.step()
    assert bench.cluster.stopped == [bench.id] * 2
    bench.ray_says("STOPPED")
    assert not bench.step()
    assert bench.ended_as == ("cancelled", Reason.CANCELLED_BY_USER)
    assert set(bench.experiment.runs) == {"cancelled"}


def test_a_stop_that_did_not_arrive_is_told_again_at_once(bench: Bench) -> None:
    bench.running()
    experiments.request_cancel(bench.db, bench.id)
    bench.cluster.stopping = [UNREACHABLE]
    assert bench.step()
    assert bench.cluster.stopped == []
    assert bench.step()
    assert bench.cluster.stopped == [bench.id]


def test_a_cancel_outdoes_a_deadline_that_is_being_carried_out(bench: Bench) -> None:
    bench.running()
    assert bench.step()
    bench.ages_while_followed(101)
    assert bench.step()
    assert bench.cluster.stopped == [bench.id]
    experiments.request_cancel(bench.db, bench.id)
    bench.ray_says("STOPPED")
    assert not bench.step()
    assert bench.ended_as == ("cancelled", Reason.CANCELLED_BY_USER)


def test_waiting_for_boards_ends_at_the_scheduling_deadline(
    sqlite_database: Database, tmp_path: Path
) -> None:
    bench = Bench(sqlite_database, tmp_path, spec(resources={"scheduling_deadline_s": 50}))
    assert bench.step()
    assert bench.step()
    bench.ages_while_followed(49)
    assert bench.step()
    assert bench.cluster.stopped == []
    bench.ages_while_followed(2)
    assert bench.step()
    assert bench.cluster.stopped == [bench.id]
    bench.ray_says("STOPPED")
    assert not bench.step()
    assert bench.ended_as == ("failed", Reason.SCHEDULING_DEADLINE)
    assert "50 s" in (bench.experiment.message or "")


def test_a_job_that_runs_and_reaches_no_service_is_tried_again_and_its_end_says_so(
    sqlite_database: Database, tmp_path: Path
) -> None:
    bench = Bench(sqlite_database, tmp_path, spec(resources={"scheduling_deadline_s": 50}))
    for attempt in (1, 2):
        assert bench.step()
        bench.ray_says("RUNNING", attempt=attempt)
        assert bench.step()
        bench.ages_while_followed(51)
        assert bench.step()
        bench.ray_says("STOPPED", attempt=attempt)
        assert bench.step() is (attempt == 1)
    assert bench.ended_as == ("failed", Reason.SERVICE_UNREACHED)
    message = bench.experiment.message or ""
    assert "its job runs" in message
    assert f"GHOSTWATT_SERVICE_URL = {bench.settings.service_url}" in message
    assert [each.reason for each in bench.experiment.attempts] == [Reason.SERVICE_UNREACHED, None]


def test_a_job_that_has_asked_and_whose_ranks_wait_for_boards_is_not_said_to_reach_nobody(
    sqlite_database: Database, tmp_path: Path
) -> None:
    bench = Bench(sqlite_database, tmp_path, spec(resources={"scheduling_deadline_s": 50}))
    assert bench.step()
    bench.ray_says("RUNNING")
    bench.job()
    assert bench.step()
    bench.ages_while_followed(51)
    assert bench.step()
    bench.ray_says("STOPPED")
    assert not bench.step()
    assert bench.ended_as == ("failed", Reason.SCHEDULING_DEADLINE)


def test_a_job_is_told_of_every_service_that_lives(bench: Bench) -> None:
    heartbeats.beat(bench.db, "other", {"service_url": "http://other:8411"})
    heartbeats.beat(bench.db, "older", {})
    heartbeats.beat(bench.db, "same", {"service_url": "http://other:8411"})
    assert bench.step()
    assert bench.cluster.environments[bench.id][JobVariable.SERVICE_URLS] == "http://other:8411"
    assert bench.job().assignment.service_urls == ("http://other:8411",)
    with bench.db.write() as session:
        session.execute(update(Heartbeat).values(at=now(session) - timedelta(seconds=60)))
    assert bench.job().assignment.service_urls == ()


def test_silence_is_ended_and_tried_again(bench: Bench) -> None:
    bench.running()
    assert bench.step()
    bench.ages_while_followed(99)
    assert bench.step()
    assert bench.cluster.stopped == []
    bench.ages_while_followed(2)
    assert bench.step()
    assert bench.cluster.stopped == [bench.id]
    bench.ray_says("STOPPED")
    assert bench.step()
    assert bench.step()
    assert bench.cluster.submitted == [bench.id, job_id(bench.id, 2)]
    assert bench.experiment.state == "starting"


def test_the_whole_deadline_ends_it_for_good(sqlite_database: Database, tmp_path: Path) -> None:
    bench = Bench(sqlite_database, tmp_path, spec(resources={"deadline_s": 50}))
    bench.running()
    bench.ages(51)
    assert bench.step()
    bench.ray_says("STOPPED")
    assert not bench.step()
    assert bench.ended_as == ("failed", Reason.DEADLINE)
    assert bench.cluster.submitted == [bench.id]


def test_the_whole_deadline_counts_from_the_first_start_whoever_follows_and_however_often_it_starts(
    sqlite_database: Database, tmp_path: Path
) -> None:
    bench = Bench(sqlite_database, tmp_path, spec(resources={"deadline_s": 50}), attempts=9)
    bench.running()
    assert bench.step()
    bench.ages_while_followed(30)
    bench.ages(30)
    bench.cluster.jobs.clear()
    assert bench.step()
    assert bench.step()
    assert bench.cluster.submitted == [bench.id, job_id(bench.id, 2)]
    follows = bench.follower
    bench.ages_while_followed(21)
    bench.ages(21)
    for follower in (follows, bench.followed_by(follows.lease)):
        bench.follower = follower
        bench.cluster.stopped.clear()
        assert bench.step()
        assert bench.cluster.stopped == [job_id(bench.id, 2)]
    bench.ray_says("STOPPED", attempt=2)
    assert not bench.step()
    assert bench.ended_as == ("failed", Reason.DEADLINE)


def test_a_wait_in_the_queue_before_the_first_start_is_no_part_of_the_whole_deadline(
    sqlite_database: Database, tmp_path: Path
) -> None:
    bench = Bench(sqlite_database, tmp_path, spec(resources={"deadline_s": 50}))
    bench.cluster.submitting = [UNREACHABLE]
    assert bench.step()
    bench.ages(51)
    assert leases.release(bench.db, bench.follower.lease)
    lease = leases.claim(bench.db, "b", 60)
    assert lease is not None
    bench.follower = bench.followed_by(lease)
    assert bench.step()
    assert bench.experiment.state == "starting"


def resumed(bench: Bench) -> None:
    """Ends the pause, and takes the next from the queue."""
    switches.resume_queue(bench.db)
    lease = leases.claim(bench.db, "a", 60)
    assert lease is not None
    assert lease.experiment_id == bench.id
    bench.follower = bench.followed_by(lease)


@pytest.mark.parametrize("tried", [False, True])
def test_what_was_taken_and_did_not_reach_ray_waits_in_the_queue_while_it_is_paused(
    bench: Bench, tried: bool
) -> None:
    if tried:
        bench.cluster.submitting = [UNREACHABLE]
        assert bench.step()
    submitted = list(bench.cluster.submitted)
    switches.pause_queue(bench.db, "new driver")
    assert not bench.step()
    assert (bench.experiment.state, bench.experiment.message) == ("queued", "the queue is paused: new driver")
    assert bench.cluster.submitted == submitted
    assert leases.claim(bench.db, "b", 60) is None
    resumed(bench)
    assert bench.step()
    assert bench.experiment.state == "starting"


def test_what_reached_ray_after_all_goes_on_though_the_queue_is_paused(bench: Bench) -> None:
    bench.cluster.submitting, bench.cluster.gets_through = [UNREACHABLE], True
    bench.cluster.asking = [UNREACHABLE]
    assert bench.step()
    switches.pause_queue(bench.db, "new driver")
    assert bench.step()
    assert bench.experiment.state == "starting"


def test_another_attempt_waits_for_the_end_of_a_pause(bench: Bench) -> None:
    bench.running()
    switches.pause_queue(bench.db, "new driver")
    bench.cluster.jobs.clear()
    assert bench.step()
    assert not bench.step()
    assert bench.experiment.state == "queued"
    assert bench.cluster.submitted == [bench.id]
    first, second = bench.experiment.attempts
    assert (first.reason, second.reason) == (Reason.JOB_UNKNOWN, None)
    assert second.ended_at is not None
    resumed(bench)
    assert bench.step()
    assert bench.cluster.submitted == [bench.id, job_id(bench.id, 3)]
    assert bench.experiment.state == "starting"


def test_a_cancel_ends_at_once_what_waits_for_the_end_of_a_pause(bench: Bench) -> None:
    switches.pause_queue(bench.db, "new driver")
    experiments.request_cancel(bench.db, bench.id)
    assert not bench.step()
    assert bench.ended_as == ("cancelled", Reason.CANCELLED_BY_USER)


def test_the_whole_deadline_holds_for_one_that_never_could_be_submitted(
    sqlite_database: Database, tmp_path: Path
) -> None:
    bench = Bench(sqlite_database, tmp_path, spec(resources={"deadline_s": 50}))
    bench.cluster.submitting = [UNREACHABLE]
    assert bench.step()
    bench.ages(51)
    assert not bench.step()
    assert bench.ended_as == ("failed", Reason.DEADLINE)


def test_a_job_is_not_silent_for_the_hours_in_which_no_service_listened(bench: Bench) -> None:
    bench.running()
    bench.ages(10_000)
    assert leases.release(bench.db, bench.follower.lease)
    lease = leases.claim(bench.db, "b", 60)
    assert lease is not None
    bench.follower = bench.followed_by(lease)
    for _ in range(3):
        assert bench.step()
    assert bench.cluster.stopped == []
    bench.ages_while_followed(101)
    assert bench.step()
    assert bench.cluster.stopped == [bench.id]


def test_a_stop_for_silence_by_a_dispatcher_that_died_is_not_taken_for_one_from_outside(bench: Bench) -> None:
    bench.running()
    bench.ages(101)
    bench.ray_says("STOPPED")
    assert bench.step()
    assert bench.experiment.state == "leased"
    assert bench.experiment.attempt == 2


def test_another_dispatcher_adopts_a_job_that_was_never_written_down(bench: Bench) -> None:
    bench.cluster.submitting, bench.cluster.gets_through = [UNREACHABLE], True
    bench.cluster.asking = [UNREACHABLE]
    assert bench.step()
    token = bench.cluster.tokens[bench.id]
    with bench.db.write() as session:
        session.execute(update(Experiment).values(lease_expires_at=now(session) - timedelta(seconds=1)))
    lease = leases.claim(bench.db, "b", 60)
    assert lease is not None
    old, bench.follower = bench.follower, bench.followed_by(lease)
    assert bench.step()
    assert bench.experiment.state == "starting"
    assert keys.verify(bench.db, token, Scope.INGEST, experiment_id=bench.id)
    # ... and the first, which lost its lease, does nothing more.
    assert not old.step(cast(Cluster, bench.cluster))
    assert bench.cluster.submitted == [bench.id]


def test_a_lease_lost_while_submitting_changes_nothing(bench: Bench) -> None:
    class TakenOver(FakeCluster):
        def capacity(self) -> Capacity:
            with bench.db.write() as session:
                session.execute(update(Experiment).values(lease_token="another's"))
            return super().capacity()

    bench.cluster = TakenOver()
    assert not bench.step()
    assert bench.cluster.submitted == []
    assert bench.experiment.state == "leased"


def test_what_can_never_fit_is_refused_with_what_it_needs(bench: Bench) -> None:
    bench.cluster.has = Capacity(cpus=1, gpus=0)
    assert not bench.step()
    assert bench.ended_as == ("failed", Reason.NO_CAPACITY)
    assert "needs 2 ranks" in (bench.experiment.message or "")
    assert bench.cluster.submitted == []


STILL = "no rank has got on for 301 s (300 s are allowed), though all of them live: rank 1 in saving step 10"


def test_ranks_that_say_they_stand_still_are_ended_and_another_attempt_is_made(bench: Bench) -> None:
    job = bench.running()
    bench.reports(ExperimentFinished(outcome="failed", reason=Reason.NO_PROGRESS, message=STILL), job)
    assert bench.step()
    assert bench.cluster.stopped == [bench.id]
    assert bench.experiment.state == "running", "boards are held until the job is gone"
    bench.ray_says("STOPPED")
    bench.step()
    bench.step()
    assert bench.cluster.submitted == [bench.id, job_id(bench.id, 2)]
    (first, _) = bench.experiment.attempts
    assert (first.reason, first.message) == (Reason.NO_PROGRESS, STILL)


def test_ranks_that_stand_still_in_the_last_attempt_fail_the_experiment_with_where_they_were(
    sqlite_database: Database, tmp_path: Path
) -> None:
    bench = Bench(sqlite_database, tmp_path, attempts=1)
    job = bench.running()
    bench.reports(ExperimentFinished(outcome="failed", reason=Reason.NO_PROGRESS, message=STILL), job)
    bench.step()
    bench.ray_says("STOPPED")
    assert not bench.step()
    assert bench.ended_as == ("failed", Reason.NO_PROGRESS)
    assert bench.experiment.message == STILL


def test_ranks_that_stand_still_when_all_runs_are_made_get_another_attempt_to_say_so(bench: Bench) -> None:
    job = bench.running()
    deliver(bench.db, job, [event for run in job.assignment.runs for event in job.run(run)])
    bench.reports(ExperimentFinished(outcome="failed", reason=Reason.NO_PROGRESS, message=STILL), job)
    assert bench.experiment.state == "running"
    bench.step()
    bench.ray_says("STOPPED")
    bench.step()
    assert bench.experiment.attempt == 2


def test_ranks_that_got_on_after_all_have_succeeded(bench: Bench) -> None:
    job = bench.running()
    bench.reports(ExperimentFinished(outcome="failed", reason=Reason.NO_PROGRESS, message=STILL), job)
    deliver(bench.db, job, [event for run in job.assignment.runs for event in job.run(run)])
    deliver(bench.db, job, job.finished())
    assert bench.experiment.state == "succeeded"
