"""Worker groups between two experiments, with their real parts: service, Ray, ranks, processes."""

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.ray_jobs.short_experiments import SHORT, longer
from tests.running import ENDED, RunningService, running_service, title, wait_until

pytestmark = pytest.mark.timeout(900)

ARMS = [{"name": "tensor", "strategy": "tensor", "world_size": 2}, {"name": "dense", "strategy": "dense"}]
SPEC = SHORT | {"arms": ARMS}
LONG = longer(100_000, 10, name="a long one", arms=ARMS)


def made(service: RunningService, spec: dict[str, Any] = SPEC) -> dict[str, Any]:
    experiment = service.wait_for(service.submit(spec), ENDED)
    assert experiment["state"] == "succeeded", (experiment["message"], service.tell())
    return service.get(f"/v1/experiments/{experiment['id']}")  # type: ignore[no-any-return]


def idle_ranks(service: RunningService) -> list[psutil.Process]:
    """Processes of the only worker group's ranks, once it is idle."""
    wait_until(
        lambda: service.rows("SELECT state FROM worker_groups") == [("idle",)],
        60,
        "an idle worker group",
        service.tell,
    )
    return ranks(service)


def ranks(service: RunningService) -> list[psutil.Process]:
    return service.processes("RayTrainWorker")


def test_the_next_experiment_starts_in_the_same_processes_and_the_loss_of_one_costs_it_nothing(
    tmp_path: Path,
) -> None:
    with running_service(tmp_path) as service:
        first = made(service)
        before = {process.pid for process in idle_ranks(service)}
        assert len(before) == 2
        second = made(service)
        assert {process.pid for process in idle_ranks(service)} == before
        (attempt,) = second["attempts"]
        assert attempt["warm"] is True
        assert attempt["ray_job_id"] == first["attempts"][0]["ray_job_id"] == first["id"]
        # The same seeds, weights and batches, whatever the processes made before.
        losses = [
            service.rows(
                "SELECT a.name, r.final_evaluation_loss, r.steps FROM runs r JOIN arms a ON a.key = r.arm_key "
                "WHERE r.experiment_id = ? ORDER BY 1",
                experiment["id"],
            )
            for experiment in (first, second)
        ]
        assert losses[0] == losses[1]
        assert [steps for _, _, steps in losses[1]] == [20, 20]
        sampled = (
            "SELECT 1 FROM power_samples p JOIN devices d ON d.key = p.device_key WHERE d.experiment_id = ?"
        )
        assert service.rows(sampled, second["id"])
        keys = service.rows("SELECT experiment_id, count(*) FROM api_keys GROUP BY 1 ORDER BY 1")
        assert keys == sorted([(first["id"], 1), (second["id"], 1)])

        victim = idle_ranks(service)[1]
        os.kill(victim.pid, signal.SIGKILL)
        third = made(service)
        assert third["attempts"][-1]["warm"] is False
        assert third["attempts"][-1]["ray_job_id"] not in {first["id"], None}
        assert all(attempt["reason"] == "group_lost" for attempt in third["attempts"][:-1])

        family = service.family()
        assert idle_ranks(service)
        assert service.end(signal.SIGINT) in {0, 130}
        _, alive = psutil.wait_procs(family, timeout=60)
        assert [title(process) for process in alive if process.is_running()] == []


def test_a_cancel_ends_the_group_and_an_idle_one_goes_with_its_time(tmp_path: Path) -> None:
    with running_service(tmp_path, GHOSTWATT_KEEP_GROUP_S="3") as service:
        long = service.submit(LONG)
        service.wait_for(long, {"running"})
        held = ranks(service)
        assert httpx.post(f"{service.url}/v1/experiments/{long}/cancel", timeout=60).status_code == 202
        assert service.wait_for(long, ENDED)["state"] == "cancelled"
        next_one = made(service)
        assert next_one["attempts"][0]["warm"] is False
        assert next_one["ray_job_id"] == next_one["id"]
        assert not any(process.is_running() for process in held)
        wait_until(lambda: not ranks(service), 60, "end of the idle group", service.tell)
        wait_until(lambda: not service.rows("SELECT 1 FROM worker_groups"), 60, "no group", service.tell)


def test_without_the_option_nothing_stays(tmp_path: Path) -> None:
    with running_service(tmp_path, GHOSTWATT_KEEP_GROUP_S="0") as service:
        first = made(service)
        wait_until(lambda: not ranks(service), 120, "end of the group", service.tell)
        second = made(service)
        assert [a["warm"] for e in (first, second) for a in e["attempts"]] == [False, False]
