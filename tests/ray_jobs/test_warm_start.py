"""Worker groups between two experiments, with their real parts: service, Ray, ranks, processes."""

import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import httpx
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
    "arms": [
        {"name": "tensor", "strategy": "tensor", "world_size": 2},
        {"name": "dense", "strategy": "dense"},
    ],
    "controls": False,
    "measurement": {"rounds": 1, "minimum_window_s": 1.0, "idle_baseline_s": 0},
}
LONG: dict[str, Any] = SPEC | {
    "name": "a long one",
    "training": SPEC["training"] | {"stop": {"kind": "steps", "steps": 100_000}},
}


def made(service: RunningService, spec: dict[str, Any] = SPEC) -> dict[str, Any]:
    experiment = service.wait_for(service.submit(spec), ENDED)
    assert experiment["state"] == "succeeded", (experiment["message"], service.tell())
    return service.get(f"/v1/experiments/{experiment['id']}")  # type: ignore[no-any-return]


def rows(service: RunningService, query: str, *values: object) -> list[tuple[Any, ...]]:
    with sqlite3.connect(service.database) as connection:
        return connection.execute(query, values).fetchall()


def idle_ranks(service: RunningService) -> list[psutil.Process]:
    """Processes of the only worker group's ranks, once it is idle."""
    wait_until(
        lambda: rows(service, "SELECT state FROM worker_groups") == [("idle",)],
        60,
        "an idle worker group",
        service.tell,
    )
    return ranks(service)


def ranks(service: RunningService) -> list[psutil.Process]:
    family = psutil.Process(service.process.pid).children(recursive=True)
    return [process for process in family if "RayTrainWorker" in _title(process)]


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


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
            rows(
                service,
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
        assert rows(service, sampled, second["id"])
        keys = rows(service, "SELECT experiment_id, count(*) FROM api_keys GROUP BY 1 ORDER BY 1")
        assert keys == sorted([(first["id"], 1), (second["id"], 1)])

        victim = idle_ranks(service)[1]
        os.kill(victim.pid, signal.SIGKILL)
        third = made(service)
        assert third["attempts"][-1]["warm"] is False
        assert third["attempts"][-1]["ray_job_id"] not in {first["id"], None}
        assert all(attempt["reason"] == "group_lost" for attempt in third["attempts"][:-1])

        family = psutil.Process(service.process.pid).children(recursive=True)
        assert idle_ranks(service)
        assert service.end(signal.SIGINT) in {0, 130}
        _, alive = psutil.wait_procs(family, timeout=10)
        assert [_title(process) for process in alive if process.is_running()] == []


def test_a_cancel_ends_the_group_and_an_idle_one_goes_with_its_time(tmp_path: Path) -> None:
    with running_service(tmp_path, GHOSTWATT_KEEP_GROUP_S="3") as service:
        long = service.submit(LONG)
        service.wait_for(long, {"running"})
        held = ranks(service)
        assert httpx.post(f"{service.url}/v1/experiments/{long}/cancel", timeout=10).status_code == 202
        assert service.wait_for(long, ENDED)["state"] == "cancelled"
        next_one = made(service)
        assert next_one["attempts"][0]["warm"] is False
        assert next_one["ray_job_id"] == next_one["id"]
        assert not any(process.is_running() for process in held)
        wait_until(lambda: not ranks(service), 60, "end of the idle group", service.tell)
        wait_until(lambda: not rows(service, "SELECT 1 FROM worker_groups"), 60, "no group", service.tell)


def test_without_the_option_nothing_stays(tmp_path: Path) -> None:
    with running_service(tmp_path, GHOSTWATT_KEEP_GROUP_S="0") as service:
        first = made(service)
        wait_until(lambda: not ranks(service), 30, "end of the group", service.tell)
        second = made(service)
        assert [a["warm"] for e in (first, second) for a in e["attempts"]] == [False, False]
