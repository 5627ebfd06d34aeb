"""Processes of a job under a real Ray are killed one by one: its sampler, and its driver while it is a warm group's."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.running import RunningService, running_service, wait_until

pytestmark = pytest.mark.timeout(900)

ENDED = {"succeeded", "failed", "lost", "cancelled"}
SPEC: dict[str, Any] = {
    "name": "a short one",
    "task": {"kind": "digits"},
    "model": {"width": 64, "depth": 2},
    "training": {"batch_size": 64, "evaluation_interval": 10, "stop": {"kind": "steps", "steps": 20}},
    "arms": [{"name": "tensor", "strategy": "tensor", "world_size": 2}],
    "controls": False,
    "measurement": {"rounds": 1, "minimum_window_s": 1.0, "idle_baseline_s": 0},
}
LONG_STEPS = 8_000
LONG: dict[str, Any] = SPEC | {
    "name": "a long one",
    "training": SPEC["training"]
    | {"evaluation_interval": LONG_STEPS // 8, "stop": {"kind": "steps", "steps": LONG_STEPS}},
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("lost processes")) as service:
        yield service


def rows(service: RunningService, query: str, *values: object) -> list[tuple[Any, ...]]:
    with sqlite3.connect(service.database) as connection:
        return connection.execute(query, values).fetchall()


def processes(service: RunningService, title: str) -> list[psutil.Process]:
    """Descendants of the service whose title or command holds the words."""
    found = []
    for process in psutil.Process(service.process.pid).children(recursive=True):
        try:
            if title in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def sampled(service: RunningService, identifier: str, sources: str) -> int:
    """Batches of power that the sampler's starts have delivered."""
    query = "SELECT count(*) FROM events WHERE experiment_id = ? AND kind = 'power_samples' AND source LIKE ?"
    return int(rows(service, query, identifier, sources)[0][0])


def test_a_killed_sampler_starts_again_training_goes_on_and_the_run_says_so(service: RunningService) -> None:
    identifier = service.submit(LONG)
    first, again = "sampler-%", "sampler-%.1"
    wait_until(lambda: sampled(service, identifier, first), 240, "power samples", service.tell)
    windows = "SELECT 1 FROM windows WHERE experiment_id = ? AND phase = 'training'"
    wait_until(lambda: rows(service, windows, identifier), 240, "a training window", service.tell)
    ranks = {process.pid for process in processes(service, "RayTrainWorker")}
    (sampler,) = processes(service, "SamplerActor")
    sampler.kill()
    wait_until(lambda: sampled(service, identifier, again), 120, "samples of its next start", service.tell)
    ended = service.wait_for(identifier, ENDED, 300)
    assert (ended["state"], ended["attempt"]) == ("succeeded", 1), (ended["message"], service.tell())
    assert ranks <= {process.pid for process in processes(service, "RayTrainWorker")}, "they never noticed"
    (run,) = service.get(f"/v1/experiments/{identifier}/runs")["items"]
    assert run["steps"] == LONG_STEPS
    assert run["energy_training_mj"] > 0, "ranks read their meters themselves"
    assert "sampler_gap" in run["flags"]


def test_a_driver_killed_in_a_warm_group_s_next_experiment_costs_that_one_attempt(
    service: RunningService,
) -> None:
    wait_until(lambda: rows(service, "SELECT 1 FROM worker_groups WHERE state = 'idle'"), 60, "an idle group")
    identifier = service.submit(LONG)
    service.wait_for(identifier, {"running"})
    (attempt,) = service.get(f"/v1/experiments/{identifier}")["attempts"]
    assert attempt["warm"] is True
    ranks = processes(service, "RayTrainWorker")
    assert len(ranks) == 2
    drivers = processes(service, "ray_jobs.experiment")
    for driver in drivers:
        driver.kill()
    wait_until(
        lambda: not any(rank.is_running() for rank in ranks), 60, "ranks that end with it", service.tell
    )
    ended = service.wait_for(identifier, ENDED, 300)
    assert ended["state"] == "succeeded", (ended["message"], service.tell())
    lost, made = service.get(f"/v1/experiments/{identifier}")["attempts"]
    assert (lost["warm"], lost["reason"]) == (True, "job_failed")
    assert made["warm"] is False
    groups = rows(service, "SELECT id FROM worker_groups")
    assert groups == [(made["ray_job_id"],)], "the lost group is forgotten"


def test_nothing_of_it_is_left(service: RunningService, tmp_path: Path) -> None:
    """Every process that still runs is the head's, the idle group's or the service's own."""
    identifier = service.submit(SPEC)
    assert service.wait_for(identifier, ENDED)["state"] == "succeeded"
    assert len(processes(service, "RayTrainWorker")) == 2
    assert len(processes(service, "SamplerActor")) == 1
