"""Ray's head, a job's process, and Ray's answers fail; two services share one database and one of them fails."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.states import ExperimentState
from tests.services.fake_job import Behaviour
from tests.services.fault_bench import SUCCEEDED, FaultBench, faults

pytestmark = pytest.mark.timeout(900)  # services are started several times, on machines that may be busy


@pytest.fixture
def bench(tmp_path: Path, database_url: str) -> Iterator[FaultBench]:
    with faults(tmp_path, database_url, Behaviour(pause_s=0.02)) as bench:
        yield bench


def test_a_killed_job_is_started_again_and_its_second_death_is_told(bench: FaultBench) -> None:
    bench.start()
    with bench.head.held("running"):
        again, dies = bench.submit(), bench.submit()
        for job in (again, dies):
            bench.wait_for_state(job, ExperimentState.RUNNING)
            assert bench.head.kill_job(job)
        second = f"{dies}-attempt-2"
        bench.wait_until(lambda: bench.head.kill_job(second), "a second start")
        bench.wait_until(lambda: bench.state(again) == "running" and bench.attempt(again) == 2, "the other")
    assert bench.settled([again, dies]) == [SUCCEEDED, ("failed", "job_failed")]


def test_a_killed_job_costs_the_experiment_that_its_group_took_over_one_attempt(bench: FaultBench) -> None:
    """A worker group makes its second experiment when its job dies, another's dies while it is idle."""
    bench.start(GHOSTWATT_KEEP_GROUP_S="60", GHOSTWATT_RAY_MAX_ACTIVE="1")
    first = bench.submit()
    bench.wait_for_state(first, ExperimentState.SUCCEEDED)
    with bench.head.held("running"):
        second = bench.submit()
        bench.wait_for_state(second, ExperimentState.RUNNING)
        assert bench.started() == [first], "the second is made in the first one's job"
        assert bench.head.kill_job(first)
        bench.wait_until(lambda: bench.attempt(second) == 2, "another attempt")
    bench.wait_for_state(second, ExperimentState.SUCCEEDED)
    again = f"{second}-attempt-2"
    bench.wait_until(lambda: bench.groups() == [(again, "idle")], "an idle group")
    assert bench.head.kill_job(again)
    third = bench.submit()
    bench.wait_for_state(third, ExperimentState.SUCCEEDED)
    bench.wait_until(lambda: again not in dict(bench.groups()), "the dead group to be forgotten")
    (last,) = bench.head.running()
    bench.head.kill_job(last)
    assert bench.settled([first, second, third]) == [SUCCEEDED] * 3


def test_a_head_that_comes_back_without_its_jobs_gets_them_again(bench: FaultBench) -> None:
    bench.start(GHOSTWATT_RAY_MAX_ACTIVE="3")
    with bench.head.held("running"):
        ids = [bench.submit() for _ in range(4)]
        for identifier in ids[:3]:
            bench.wait_for_state(identifier, ExperimentState.RUNNING)
        bench.head.kill()
        assert [bench.state(identifier) for identifier in ids] == ["running"] * 3 + ["queued"]
        bench.head.start()
    assert bench.settled(ids) == [SUCCEEDED] * 4


def test_with_the_head_gone_for_good_every_experiment_ends_at_its_deadline(bench: FaultBench) -> None:
    service = bench.start(GHOSTWATT_RAY_MAX_ACTIVE="2", GHOSTWATT_SILENCE_DEADLINE_S="20")
    with bench.head.held("running"):
        running = bench.submit(resources={"deadline_s": 30})
        bench.wait_for_state(running, ExperimentState.RUNNING)
        bench.head.kill()
    bench.wait_until(service.is_degraded, "a service that misses its cluster")
    queued = bench.submit()
    bench.wait_for_state(running, ExperimentState.LOST)
    assert bench.state(queued) == "queued", "nothing is taken from the queue without a cluster"
    service.post(f"/v1/experiments/{queued}/cancel")
    assert bench.settled([running, queued]) == [("lost", "deadline"), ("cancelled", "cancelled_by_user")]


def test_with_service_and_head_killed_and_the_head_gone_for_good_what_ran_ends_at_its_deadline(
    bench: FaultBench,
) -> None:
    """Whoever comes next takes it over without a cluster, and can end it, on its own or on request."""
    bench.start(GHOSTWATT_SILENCE_DEADLINE_S="20")
    with bench.head.held("running"):
        ids = [bench.submit(resources={"deadline_s": 45}), bench.submit()]
        for identifier in ids:
            bench.wait_for_state(identifier, ExperimentState.RUNNING)
        bench.kill()
        bench.head.kill()
    service = bench.start_without_a_cluster(GHOSTWATT_SILENCE_DEADLINE_S="20")
    service.post(f"/v1/experiments/{ids[1]}/cancel")
    assert bench.settled(ids) == [("lost", "deadline"), ("cancelled", "cancelled_by_user")]


def test_a_head_that_only_answers_errors_for_a_while_costs_nothing(bench: FaultBench) -> None:
    bench.start()
    with bench.head.held("running"):
        ids = [bench.submit() for _ in range(2)]
        for identifier in ids:
            bench.wait_for_state(identifier, ExperimentState.RUNNING)
        bench.head.control(status=500)
        ids.append(bench.submit())
    bench.wait_until(lambda: {bench.state(identifier) for identifier in ids[:2]} == {"succeeded"}, "two ends")
    bench.head.control(status=200)
    assert bench.settled(ids) == [SUCCEEDED] * 3
    assert sorted(bench.started()) == sorted(ids)


def test_of_two_services_the_living_one_takes_over_from_the_dead(bench: FaultBench) -> None:
    """Each job reports to the service that started it, and to the other one when that is gone."""
    bench.start("b", GHOSTWATT_RAY_MAX_ACTIVE="1")
    bench.start("a", GHOSTWATT_RAY_MAX_ACTIVE="4")
    resources = {"scheduling_deadline_s": 40}
    with bench.head.held("running"):
        ids = [bench.submit(name, resources=resources) for name in "aba"]
        for identifier in ids:
            bench.wait_for_state(identifier, ExperimentState.RUNNING)
        with bench.head.held("begin"):
            starting = [bench.submit(name, resources=resources) for name in "ab"]
            for identifier in starting:
                bench.wait_for_state(identifier, ExperimentState.STARTING)
            bench.kill("a")
    ids += starting
    assert bench.settled(ids) == [SUCCEEDED] * 5
    assert sorted(bench.started()) == sorted(ids), "nothing was started twice"


@pytest.mark.parametrize("reports_to", ["a", "b"])
def test_a_service_that_stood_still_past_its_lease_changes_nothing_when_it_goes_on(
    bench: FaultBench, reports_to: str
) -> None:
    """Its jobs report to the other one, or to itself: then what they say arrives after its lease ran out."""
    bench.service_url = f"http://127.0.0.1:{bench.port_of(reports_to)}"
    bench.start("a")
    with bench.head.held("running"):
        ids = [bench.submit("a") for _ in range(2)]
        for identifier in ids:
            bench.wait_for_state(identifier, ExperimentState.STARTING, ExperimentState.RUNNING)
        (owner,) = bench.owners()
        bench.start("b")
        for identifier in ids:
            bench.wait_for_state(identifier, ExperimentState.RUNNING)
        frozen = bench.freeze("a")
    bench.wait_until(lambda: owner not in bench.owners(), "another owner of both")
    frozen.process.send_signal(signal.SIGCONT)
    assert bench.settled(ids) == [SUCCEEDED] * 2
    assert sorted(bench.started()) == sorted(ids)
