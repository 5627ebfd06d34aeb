"""A worker group makes one experiment after another: what it is given, what it is not, and what its end costs."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy import select, update

from phantom_core.capacity import Capacity
from phantom_core.protocol import GroupEnded, NextAnswer, NextRequest, Reason
from services import assignments, experiments, following, group_calls, groups, job_logs, keys, leases
from services.cluster import Cluster, JobStatus
from services.database import Database
from services.errors import KeyLacksScope, KeyRefused, NotFound
from services.following import job_id
from services.keys import Scope
from services.states import GroupState
from services.tables import Experiment, WorkerGroup
from tests.services.following_bench import UNREACHABLE, Bench, FakeCluster
from tests.services.simulated_job import Figures, SimulatedJob, deliver, spec


@pytest.fixture
def bench(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    # Time passes as the tests say, not as a busy machine does.
    for limit in ("FRESH_S", "COMES_BACK_S", "SUSPECT_S", "NEGLECTED_S", "FORGOTTEN_S"):
        monkeypatch.setattr(groups, limit, 8 * getattr(groups, limit))
    monkeypatch.setattr(following, "HANDOVER_S", 8 * following.HANDOVER_S)
    return Bench(database, tmp_path, keep_group_s=480)


def ages(bench: Bench, seconds: float) -> None:
    """Time passes for the groups."""
    earlier = timedelta(seconds=seconds)
    with bench.db.write() as session:
        for group in session.scalars(select(WorkerGroup)):
            group.seen_at, group.since, group.made_at = (
                group.seen_at - earlier,
                group.since - earlier,
                group.made_at - earlier,
            )


def states(bench: Bench) -> dict[str, str]:
    with bench.db.read() as session:
        return {group.id: group.state for group in session.scalars(select(WorkerGroup))}


def test_a_group_that_did_well_makes_the_next_experiment_with_that_ones_own_token(bench: Bench) -> None:
    group = bench.idle_group()
    bench.next()
    assert bench.step()
    assert bench.cluster.submitted == [group]
    found = bench.experiment
    assert (found.state, found.ray_job_id) == ("starting", group)
    assert found.ray_dashboard_url == f"http://ray/{group}"
    told = bench.asks(group, group)
    assert (told.action, told.experiment_id) == ("begin", bench.id)
    assert told.token is not None
    assert keys.verify(bench.db, told.token, Scope.INGEST, experiment_id=bench.id)
    with pytest.raises(KeyLacksScope):
        keys.verify(bench.db, told.token, Scope.INGEST, experiment_id=group)
    with pytest.raises(KeyLacksScope):
        keys.verify(bench.db, bench.cluster.tokens[group], Scope.INGEST, experiment_id=bench.id)
    job = SimulatedJob(assignments.assignment(bench.db, bench.id))
    deliver(bench.db, job, job.everything())
    assert bench.experiment.state == "succeeded"
    assert [attempt.warm for attempt in bench.experiment.attempts] == [True]
    assert bench.asks(group, bench.id).action == "wait"
    assert states(bench) == {group: GroupState.IDLE}


def test_an_answer_that_was_lost_is_given_again_with_another_key(bench: Bench) -> None:
    group = bench.idle_group()
    bench.next()
    bench.step()
    first, second = bench.asks(group, group), bench.asks(group, group)
    assert first.experiment_id == second.experiment_id == bench.id
    assert first.token is not None
    assert second.token is not None
    with pytest.raises(KeyRefused):
        keys.verify(bench.db, first.token, Scope.INGEST, experiment_id=bench.id)
    assert keys.verify(bench.db, second.token, Scope.INGEST, experiment_id=bench.id)


@pytest.mark.parametrize("token", ["", "gg_wrong", "the job's"])
def test_a_group_is_known_by_its_own_token_alone(bench: Bench, token: str) -> None:
    group = bench.idle_group()
    given = bench.cluster.tokens[group] if token == "the job's" else token
    question = NextRequest(group_id=group, finished=group, device="cpu")
    with pytest.raises(KeyRefused):
        group_calls.ask(bench.db, question, given, 60)
    with pytest.raises(KeyRefused):
        group_calls.ended(bench.db, GroupEnded(group_id=group, outcome="failed"), given)
    with pytest.raises(KeyRefused):
        keys.verify(bench.db, bench.cluster.group_tokens[group], Scope.INGEST, experiment_id=group)


@pytest.mark.parametrize(
    "other",
    [
        spec(arms=[{"strategy": "tensor", "name": "tensor", "world_size": 4}]),
        spec(arms=[{"strategy": "dense", "name": "dense"}]),
        spec(resources={"cpus_per_rank": 0.5}),
    ],
)
def test_one_that_does_not_fit_gets_a_group_of_its_own_and_the_idle_one_ends(
    bench: Bench, other: object
) -> None:
    group = bench.idle_group()
    bench.next(other)  # type: ignore[arg-type]
    assert bench.step()
    assert bench.cluster.submitted == [group, bench.id]
    assert bench.asks(group, group).action == "end"


def test_other_devices_do_not_fit(bench: Bench) -> None:
    group = bench.idle_group()
    bench.cluster.has = Capacity(cpus=8, gpus=2)
    bench.next()
    assert bench.step()
    assert bench.cluster.submitted == [group, bench.id]


def test_a_group_of_another_version_is_not_used(bench: Bench) -> None:
    group = bench.idle_group()
    with bench.db.write() as session:
        session.execute(update(WorkerGroup).values(software="ghostwatt 0.0"))
    bench.next()
    assert bench.step()
    assert bench.cluster.submitted == [group, bench.id]


def test_a_group_that_is_about_to_ask_is_waited_for(bench: Bench) -> None:
    bench.succeeds()
    group = bench.id
    bench.next()
    assert bench.step()
    assert bench.experiment.state == "leased"
    assert bench.asks(group, group).action == "wait"
    assert bench.step()
    assert bench.asks(group, group).experiment_id == bench.id
    assert bench.cluster.submitted == [group]


def test_a_clock_that_was_set_back_lets_nobody_wait_for_a_group_that_never_asks(bench: Bench) -> None:
    bench.succeeds()
    bench.ages_since_its_end(-3_600)
    first = bench.id
    bench.next()
    assert bench.step()
    assert bench.cluster.submitted == [first, bench.id]


def test_a_clock_that_was_set_back_keeps_an_idle_group_no_longer_than_the_setting_says(bench: Bench) -> None:
    group = bench.idle_group()
    ages(bench, -3_600)
    assert bench.asks(group, group).action == "wait"
    ages(bench, bench.settings.keep_group_s + 1)
    assert bench.asks(group, group).action == "end"


def test_a_group_whose_last_question_is_in_the_future_is_looked_up_in_ray(bench: Bench) -> None:
    group = bench.idle_group()
    assert groups.neglected(bench.db) == []
    ages(bench, -3_600)
    assert groups.neglected(bench.db) == [groups.Neglected(group, is_to_end=False)]


def test_a_group_that_never_asks_is_not_waited_for_long(bench: Bench) -> None:
    bench.succeeds()
    first = bench.id
    with bench.db.write() as session:
        experiment = session.get_one(Experiment, first)
        assert experiment.finished_at is not None
        experiment.finished_at -= timedelta(seconds=groups.COMES_BACK_S + 1)
    bench.next()
    assert bench.step()
    assert bench.cluster.submitted == [first, bench.id]


@pytest.mark.parametrize("keep_group_s", [0.0, 60.0])
def test_a_group_stays_as_long_as_the_setting_says(
    database: Database, tmp_path: Path, keep_group_s: float
) -> None:
    bench = Bench(database, tmp_path, keep_group_s=keep_group_s)
    bench.succeeds()
    if keep_group_s:
        assert bench.asks(bench.id, bench.id).action == "wait"
        ages(bench, 40)
        assert bench.asks(bench.id, bench.id).action == "wait"
        ages(bench, 21)
    assert bench.asks(bench.id, bench.id).action == "end"
    group = bench.id
    bench.next()
    assert bench.step()
    assert bench.cluster.submitted == [group, bench.id]


def test_a_group_with_a_failed_run_ends(bench: Bench) -> None:
    job = bench.running()
    figures = {"phantom": Figures(outcome="failed")}
    deliver(bench.db, job, [e for run in job.assignment.runs for e in job.run(run, figures.get(run.arm))])
    deliver(bench.db, job, job.finished())
    assert bench.experiment.state == "succeeded"
    assert bench.asks(bench.id, bench.id).action == "end"


def test_a_group_whose_runs_were_never_reported_ends_so_that_the_dispatcher_can_judge(bench: Bench) -> None:
    job = bench.running()
    deliver(bench.db, job, job.finished())
    assert bench.asks(bench.id, bench.id).action == "end"


def cancelled(bench: Bench) -> None:
    experiments.request_cancel(bench.db, bench.id)
    assert bench.step()
    bench.ray_says("STOPPED")
    assert not bench.step()


def crashed(bench: Bench) -> None:
    told = GroupEnded(group_id=bench.id, outcome="failed", reason=Reason.TASK_ERROR, message="no column")
    group_calls.ended(bench.db, told, bench.cluster.group_tokens[bench.id])
    bench.ray_says("FAILED")
    bench.steps_to_the_end()
    assert (bench.experiment.reason, bench.experiment.message) == ("task_error", "no column")


@pytest.mark.parametrize("end", [cancelled, crashed])
def test_a_cancel_or_a_crash_ends_the_group_and_not_the_next_experiment(
    bench: Bench, end: Callable[[Bench], None]
) -> None:
    bench.running()
    end(bench)
    group = bench.id
    assert states(bench).get(group) in {None, GroupState.ENDING}
    bench.next()
    bench.succeeds()
    assert bench.cluster.submitted == [group, bench.id]


def test_a_cancelled_experiments_group_takes_nothing_more_while_its_job_is_being_stopped(
    bench: Bench,
) -> None:
    bench.running()
    experiments.request_cancel(bench.db, bench.id)
    assert bench.step()
    assert bench.cluster.stopped == [bench.id]
    assert bench.asks(bench.id, bench.id).action == "end"


@pytest.mark.parametrize("asked", [False, True])
def test_cancelling_one_that_was_given_to_an_idle_group_stops_the_group(bench: Bench, asked: bool) -> None:
    group = bench.idle_group()
    bench.next()
    bench.step()
    if asked:
        assert bench.asks(group, group).action == "begin"
    experiments.request_cancel(bench.db, bench.id)
    assert bench.step()
    assert bench.cluster.stopped == [group]
    assert bench.asks(group, group).action == "end"
    bench.cluster.jobs[group] = JobStatus("STOPPED", "")
    assert not bench.step()
    assert bench.ended_as == ("cancelled", Reason.CANCELLED_BY_USER)


def test_a_group_that_has_gone_on_is_not_stopped_for_what_it_made_before(bench: Bench) -> None:
    group = bench.idle_group()
    bench.next()
    bench.step()
    assert bench.asks(group, group).action == "begin"
    assert not groups.give_up(bench.db, group, experiment_id=group)
    assert groups.give_up(bench.db, group, experiment_id=bench.id)


@pytest.mark.parametrize("how", ["FAILED", "SUCCEEDED", "STOPPED", None])
@pytest.mark.parametrize("asked", [False, True])
def test_a_group_lost_while_handing_over_costs_no_attempt(bench: Bench, how: str | None, asked: bool) -> None:
    bench.settings = bench.settings.model_copy(update={"attempts": 1})
    group = bench.idle_group()
    bench.next()
    bench.step()
    if asked:
        assert bench.asks(group, group).action == "begin"
        told = GroupEnded(group_id=group, outcome="failed", reason=Reason.WORKER_LOST, message="rank 1 died")
        group_calls.ended(bench.db, told, bench.cluster.group_tokens[group])
    if how is None:
        bench.cluster.jobs.clear()
    else:
        bench.cluster.jobs[group] = JobStatus(how, "")  # type: ignore[arg-type]
    assert bench.step()
    assert bench.step()
    again = job_id(bench.id, 2)
    assert bench.cluster.submitted == [group, again]
    first, second = bench.experiment.attempts
    assert (first.reason, first.warm, second.warm) == (Reason.GROUP_LOST, True, False)
    # ... but a crash of its own counts, and with one attempt allowed is the last.
    bench.cluster.jobs[again] = JobStatus("FAILED", "segmentation fault")
    bench.steps_to_the_end()
    assert bench.ended_as == ("failed", Reason.JOB_FAILED)
    assert bench.cluster.submitted == [group, again]


def test_data_that_a_group_can_not_read_are_told_once(bench: Bench) -> None:
    group = bench.idle_group()
    bench.next()
    bench.step()
    assert bench.asks(group, group).action == "begin"
    told = GroupEnded(group_id=group, outcome="failed", reason=Reason.TASK_ERROR, message="no column")
    group_calls.ended(bench.db, told, bench.cluster.group_tokens[group])
    bench.cluster.jobs[group] = JobStatus("FAILED", "")
    bench.steps_to_the_end()
    assert bench.ended_as == ("failed", Reason.TASK_ERROR)
    assert bench.experiment.attempt == 1


def test_a_group_that_does_not_take_what_it_is_offered_gets_nothing(bench: Bench) -> None:
    group = bench.idle_group()
    bench.next()
    bench.step()
    ages(bench, following.HANDOVER_S / 2)  # the rest is for a busy machine, whose time passes too
    assert bench.step()
    assert bench.experiment.attempt == 1
    ages(bench, following.HANDOVER_S / 2)
    assert bench.step()
    assert bench.asks(group, group).action == "end"
    assert bench.step()
    assert bench.cluster.submitted == [group, job_id(bench.id, 2)]


def test_a_group_that_has_fallen_silent_is_offered_nothing(bench: Bench) -> None:
    group = bench.idle_group()
    ages(bench, groups.FRESH_S + 1)
    bench.next()
    assert bench.step()
    assert bench.cluster.submitted == [group, bench.id]


def test_another_dispatcher_goes_on_with_a_handover(bench: Bench) -> None:
    group = bench.idle_group()
    bench.next()
    bench.step()
    assert leases.release(bench.db, bench.follower.lease)
    lease = leases.claim(bench.db, "b", 60)
    assert lease is not None
    bench.follower = bench.followed_by(lease)
    assert bench.step()
    assert bench.asks(group, group).experiment_id == bench.id
    assert bench.cluster.submitted == [group]


def test_starts_that_never_reached_ray_are_not_counted(bench: Bench) -> None:
    class DiesOnSubmit(FakeCluster):
        def submit(self, job: str, **options: object) -> None:
            raise SystemExit

    working = bench.cluster
    for _ in range(5):
        bench.cluster = DiesOnSubmit()
        with pytest.raises(SystemExit):
            bench.step()
        leases.release(bench.db, bench.follower.lease)
        lease = leases.claim(bench.db, "b", 60)
        assert lease is not None
        bench.follower = bench.followed_by(lease)
    bench.cluster = working
    assert bench.step()
    assert bench.experiment.attempt == 6
    assert leases.follow(bench.db, bench.follower.lease).starts == 1
    bench.cluster.jobs[job_id(bench.id, 6)] = JobStatus("FAILED", "")
    for _ in range(3):
        assert bench.step()
        bench.clock_s += 60
    assert bench.cluster.submitted == [job_id(bench.id, 6), job_id(bench.id, 7)]


def test_a_lost_group_is_found_by_its_silence_and_forgotten_with_its_job(bench: Bench) -> None:
    group = bench.idle_group()
    assert groups.neglected(bench.db) == []
    ages(bench, groups.NEGLECTED_S + 1)
    assert [found.id for found in groups.neglected(bench.db)] == [group]
    assert groups.end_neglected(bench.db, group)
    assert bench.asks(group, group).action == "end"
    assert not groups.end_neglected(bench.db, group), "it has just spoken"
    groups.forget(bench.db, group)
    assert states(bench) == {}


def test_a_group_whose_job_died_after_its_experiment_s_end_is_found_in_seconds_and_not_stopped_yet(
    bench: Bench,
) -> None:
    """Its driver was killed before the ranks asked for more: Ray knows at once, long before silence says so."""
    bench.succeeds()
    assert groups.neglected(bench.db) == []
    ages(bench, groups.SUSPECT_S + 1)
    bench.ages_since_its_end(groups.SUSPECT_S + 1)
    (found,) = groups.neglected(bench.db)
    assert (found.id, found.is_to_end) == (bench.id, False), "its last events may still be on their way"
    ages(bench, groups.FORGOTTEN_S)
    bench.ages_since_its_end(groups.FORGOTTEN_S)
    (found,) = groups.neglected(bench.db)
    assert found.is_to_end


def test_a_group_that_works_is_never_neglected_however_long(bench: Bench) -> None:
    bench.running()
    ages(bench, 1e6)
    assert groups.neglected(bench.db) == []


def test_what_an_ending_service_kept_idle_ends_and_others_stay(bench: Bench) -> None:
    group = bench.idle_group()
    assert groups.end_idle(bench.db, "http://another") == []
    assert groups.end_idle(bench.db, bench.settings.service_url) == [group]
    assert states(bench) == {group: GroupState.ENDING}


@pytest.mark.parametrize("mark", ["(Worker pid=7) ghostwatt: making {id}, attempt 1\n", ""])
def test_a_groups_earlier_log_is_not_told_of_a_later_experiment(bench: Bench, mark: str) -> None:
    group, earlier = bench.idle_group(), bench.id
    bench.cluster.printed = "secret of another\n"
    bench.next()
    bench.step()
    assert bench.asks(group, group).action == "begin"
    job = SimulatedJob(assignments.assignment(bench.db, bench.id))
    deliver(bench.db, job, job.started())
    bench.settings = bench.settings.model_copy(update={"attempts": 1})
    bench.follower = bench.followed_by(bench.follower.lease)
    bench.cluster.jobs[group] = JobStatus("FAILED", "exit code 1")
    bench.cluster.printed += mark.format(id=bench.id) + "ValueError: mine\n"
    bench.steps_to_the_end()
    job_logs.copy_all(bench.db, cast(Cluster, bench.cluster))
    parts = [job_logs.read(bench.db, each, first_byte=0, length=1_000).data for each in (earlier, bench.id)]
    assert parts[0] == b"secret of another\n"
    assert parts[1].endswith(b"ValueError: mine\n")
    assert b"secret" not in parts[1]
    assert "ValueError: mine" in (bench.experiment.message or "")
    assert "secret" not in (bench.experiment.message or "")


BEGINNINGS: dict[str, Callable[[Bench], object]] = {
    "leased": lambda bench: None,
    "starting": lambda bench: bench.step(),
    "running": lambda bench: bench.running(),
}


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("delete", [False, True])
@pytest.mark.parametrize("state", BEGINNINGS)
def test_cancel_and_delete_work_from_every_state(bench: Bench, state: str, delete: bool, warm: bool) -> None:
    group = bench.idle_group() if warm else ""
    if warm:
        bench.next()
    if warm and state == "running":
        bench.step()
        assert bench.asks(group, group).action == "begin"
        job = SimulatedJob(assignments.assignment(bench.db, bench.id))
        deliver(bench.db, job, job.started())
    else:
        BEGINNINGS[state](bench)
    assert bench.experiment.state == state
    (experiments.request_delete if delete else experiments.request_cancel)(bench.db, bench.id)
    for _ in range(3):
        if not bench.step():
            break
        for stopped in bench.cluster.stopped:
            bench.cluster.jobs[stopped] = JobStatus("STOPPED", "")
    if delete:
        with pytest.raises(NotFound):
            experiments.get(bench.db, bench.id)
    else:
        assert bench.ended_as == ("cancelled", Reason.CANCELLED_BY_USER)
    assert bench.cluster.stopped == ([] if state == "leased" else [group or bench.id])


def test_the_wait_is_told_by_attempt_with_a_reason_for_what_is_not_known(bench: Bench) -> None:
    assert bench.experiment.phase.name == "cluster"
    group = bench.idle_group()
    (only,) = bench.experiment.attempts
    assert None not in (only.queued_s, only.cluster_s, only.start_up_s, only.set_up_s)
    assert only.timings_reason is None
    assert bench.experiment.phase.name == "ended"
    bench.next()
    bench.step()
    assert bench.experiment.phase.name == "cluster"
    assert bench.experiment.attempts[0].timings_reason == "not yet: cluster goes on"
    assert bench.asks(group, group).action == "begin"
    job = SimulatedJob(assignments.assignment(bench.db, bench.id))
    assert bench.experiment.phase.name == "start_up"
    deliver(bench.db, job, job.started())
    assert bench.experiment.phase.name == "set_up"
    deliver(bench.db, job, job.run(job.assignment.runs[0]))
    assert bench.experiment.phase.name == "runs"
    bench.cluster.jobs.clear()
    assert bench.step()
    first, second = bench.experiment.attempts
    assert first.timings_reason is None
    assert second.timings_reason == "not yet: cluster goes on"
    assert second.start_up_s is None


def test_a_cluster_that_answers_nothing_changes_no_group(bench: Bench) -> None:
    group = bench.idle_group()
    bench.next()
    bench.step()
    bench.cluster.asking = [UNREACHABLE] * 3
    for _ in range(3):
        assert bench.follower.step(cast(Cluster, bench.cluster))
    assert states(bench) == {group: GroupState.OFFERED}
    assert isinstance(bench.asks(group, group), NextAnswer)


def test_a_group_that_becomes_idle_while_ray_is_asked_about_it_is_not_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was starting when the follower looked; its experiment ends while Ray takes its time to answer."""
    assert bench.step()
    assert bench.experiment.state == "starting"
    ask = bench.cluster.status

    def status(name: str) -> JobStatus | None:
        job = bench.job()
        deliver(bench.db, job, job.everything())
        assert bench.asks(bench.id, bench.id).action == "wait"
        return ask(name)

    monkeypatch.setattr(bench.cluster, "status", status)
    bench.ray_says("RUNNING")
    bench.step()
    assert bench.experiment.state == "succeeded"
    assert states(bench) == {bench.id: GroupState.IDLE}
