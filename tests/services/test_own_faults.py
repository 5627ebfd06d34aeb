"""The service's own code has a fault that shows with one experiment: the others never notice, and it ends in truth."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.states import ExperimentState
from tests.services.fake_job import Behaviour
from tests.services.fault_bench import SUCCEEDED, FaultBench, faults

MODULE = "tests.services.faulty_service"

pytestmark = pytest.mark.timeout(900)  # services are started several times, on machines that may be busy


@pytest.fixture
def bench(tmp_path: Path, database_url: str) -> Iterator[FaultBench]:
    (tmp_path / "faulty").write_text("")
    with faults(tmp_path, database_url, Behaviour(pause_s=0.02)) as bench:
        yield bench


def test_a_fault_in_following_one_experiment_costs_the_others_nothing_and_it_ends_at_its_deadline(
    bench: FaultBench,
) -> None:
    faulty = bench.folder / "faulty"
    service = bench.start(module=MODULE, FAULTY_FOR=str(faulty), GHOSTWATT_SILENCE_DEADLINE_S="15")
    with bench.head.held("running"):
        ids = [bench.submit(resources={"deadline_s": 30}), bench.submit()]
        for identifier in ids:
            bench.wait_for_state(identifier, ExperimentState.RUNNING)
        faulty.write_text("\n".join(ids))
        bench.wait_until(service.is_degraded, "a service that says what it fails at")
        # Of two that fail either may do so first.
        bench.wait_until(lambda: ids[0] in str(service.get("/readyz")), "a word of the first one")
        (told,) = [each for each in service.get("/readyz")["checks"] if not each["ok"]]
        assert told["name"] == "dispatcher"
        assert f"following {ids[0]} (TypeError)" in told["detail"]
        service.post(f"/v1/experiments/{ids[1]}/cancel")
        for identifier, state in zip(ids, (ExperimentState.LOST, ExperimentState.CANCELLED), strict=True):
            bench.wait_for_state(identifier, state)
            assert "TypeError" in service.get(f"/v1/experiments/{identifier}")["message"]
        bench.wait_until(lambda: not bench.head.running(), "jobs that are stopped all the same")
    faulty.write_text("")
    others = [bench.submit() for _ in range(2)]
    ended = bench.settled([*ids, *others])
    assert ended == [("lost", "deadline"), ("cancelled", "cancelled_by_user"), SUCCEEDED, SUCCEEDED]
    assert service.get("/readyz")["status"] == "ready"
    log = service.log.read_text()
    for identifier in ids:
        assert log.count(f"following {identifier} failed, which nobody expected") == 1


def test_what_a_job_reports_lands_although_following_it_fails(bench: FaultBench) -> None:
    faulty = bench.folder / "faulty"
    bench.start(module=MODULE, FAULTY_FOR=str(faulty))
    with bench.head.held("running"):
        identifier = bench.submit()
        bench.wait_for_state(identifier, ExperimentState.RUNNING)
        faulty.write_text(identifier)
    bench.wait_for_state(identifier, ExperimentState.SUCCEEDED)
    faulty.write_text("")
    assert bench.settled([identifier]) == [SUCCEEDED]


def test_a_fault_in_keeping_the_cluster_is_told_with_its_kind_and_passes_with_it(bench: FaultBench) -> None:
    faulty = bench.folder / "faulty"
    service = bench.start(module=MODULE, FAULTY_FOR=str(faulty))
    faulty.write_text("capacity")
    bench.wait_until(service.is_degraded, "a service that says what it fails at")
    bench.wait_until(lambda: "keeping the cluster" in str(service.get("/readyz")), "the part that fails")
    told = {each["name"]: each for each in service.get("/readyz")["checks"] if not each["ok"]}
    assert set(told) == {"dispatcher", "cluster"}
    assert "keeping the cluster (TypeError)" in told["dispatcher"]["detail"]
    assert "TypeError" in told["cluster"]["detail"]
    assert "secret" not in str(told)
    waiting = bench.submit()
    assert bench.state(waiting) == ExperimentState.QUEUED
    faulty.write_text("")
    assert bench.settled([waiting]) == [SUCCEEDED]
    assert service.get("/readyz")["status"] == "ready"
    assert service.log.read_text().count("keeping the cluster failed, which nobody expected") == 1
