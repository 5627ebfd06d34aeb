"""The main job with its real parts: service, Ray, ranks, meters, SQLite."""

import math
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.ray_jobs.auto_rounds import EASY, HARD, assert_ended_early, assert_used_up, auto_spec
from tests.running import ENDED, RunningService, running_service, title, wait_until

pytestmark = pytest.mark.timeout(900)

ARMS: list[dict[str, Any]] = [
    {"name": "tensor", "strategy": "tensor", "world_size": 2},
    {"name": "phantom", "strategy": "phantom", "ghosts": 4, "world_size": 2},
    {"name": "dense", "strategy": "dense"},
    {
        "name": "diverging",
        "strategy": "block_diagonal",
        "world_size": 2,
        "training": {"optimizer": "sgd", "learning_rate": 1000.0},
    },
]

SPEC: dict[str, Any] = {
    "name": "a small one",
    "tags": {"suite": "main job"},
    "task": {"kind": "digits"},
    "model": {"width": 64, "depth": 2},
    "training": {"batch_size": 64, "evaluation_interval": 10, "stop": {"kind": "steps", "steps": 20}},
    "arms": ARMS,
    "controls": False,
    "measurement": {"rounds": 3, "minimum_window_s": 1.2, "idle_baseline_s": 0.5},
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("main job")) as service:
        yield service


@pytest.fixture(scope="module")
def finished(service: RunningService) -> dict[str, Any]:
    identifier = service.submit(SPEC)
    return service.wait_for(identifier, ENDED)


def test_an_arm_that_diverges_ends_so_and_the_others_go_on(
    service: RunningService, finished: dict[str, Any]
) -> None:
    assert finished["state"] == "succeeded", (finished["message"], service.tell())
    assert finished["runs"] == {"succeeded": 9, "diverged": 3}
    runs = service.get(f"/v1/experiments/{finished['id']}/runs")["items"]
    diverged = [run for run in runs if run["state"] == "diverged"]
    assert {run["arm"] for run in diverged} == {"diverging"}
    for run in diverged:
        assert run["reason"] == "non_finite_loss"
        assert run["steps"] >= 1


def test_every_table_holds_what_happened(service: RunningService, finished: dict[str, Any]) -> None:
    tables = [
        "experiments",
        "arms",
        "runs",
        "attempts",
        "metric_blocks",
        "windows",
        "power_samples",
        "devices",
    ]
    tables += ["events", "api_keys", "comparisons", "heartbeats", "experiment_tags"]
    for table in tables:
        # The comparison is stored a moment after the end that it was waited for.
        assert wait_until(partial(service.rows, f"SELECT 1 FROM {table} LIMIT 1"), 120, f"row in {table}")


def test_a_comparison_pairs_rounds_and_says_how_it_knows(
    service: RunningService, finished: dict[str, Any]
) -> None:
    comparison = service.get(f"/v1/experiments/{finished['id']}/comparison")
    assert comparison["baseline"] == "tensor"
    by_arm = {arm["arm"]: arm["primary"] for arm in comparison["arms"]}
    assert by_arm["phantom"]["pairs"] == 3
    assert by_arm["phantom"]["ratio_low"] < by_arm["phantom"]["ratio"] < by_arm["phantom"]["ratio_high"]
    assert by_arm["phantom"]["verdict"] in {"saves", "costs_more", "no_difference_shown"}
    assert by_arm["diverging"]["verdict"] == "not_comparable"
    if comparison["method"] == "estimate":
        assert comparison["estimated"] is True
        assert "estimated" in by_arm["phantom"]["flags"]


def test_energy_of_a_run_is_the_sum_over_its_devices_windows(
    service: RunningService, finished: dict[str, Any]
) -> None:
    columns = "r.id, r.energy_training_mj, r.steps, a.world_size"
    for run_id, energy_mj, steps, ranks in service.rows(
        f"SELECT {columns} FROM runs r JOIN arms a ON a.key = r.arm_key WHERE r.state = 'succeeded'"
    ):
        windows = service.rows(
            "SELECT w.device_key, w.energy_mj, w.steps FROM windows w JOIN runs r ON r.key = w.run_key "
            "WHERE r.id = ? AND w.phase = 'training' AND w.charged",
            run_id,
        )
        assert energy_mj == pytest.approx(math.fsum(window[1] for window in windows)), run_id
        devices = Counter(window[0] for window in windows)
        assert len(devices) in {1, ranks}
        for device in devices:
            assert sum(window[2] for window in windows if window[0] == device) == steps == 20


def test_a_device_that_an_arm_leaves_idle_is_recorded_but_not_charged(
    service: RunningService, finished: dict[str, Any]
) -> None:
    kinds = service.rows(
        "SELECT a.name, w.phase, w.charged, count(*) FROM windows w JOIN runs r ON r.key = w.run_key "
        "JOIN arms a ON a.key = r.arm_key GROUP BY 1, 2, 3",
    )
    waiting = {(name, charged) for name, phase, charged, _ in kinds if phase == "waiting"}
    devices = service.rows("SELECT count(*) FROM devices")[0][0]
    assert waiting == ({("dense", 0)} if devices > 1 else set())


def test_arms_are_shuffled_in_every_round_and_each_run_was_made_once(
    service: RunningService, finished: dict[str, Any]
) -> None:
    started = service.rows(
        "SELECT r.round, a.name FROM runs r JOIN arms a ON a.key = r.arm_key ORDER BY r.started_at",
    )
    assert [number for number, _ in started] == [0] * 4 + [1] * 4 + [2] * 4
    orders = {tuple(name for number, name in started if number == turn) for turn in range(3)}
    assert len(orders) > 1
    assert service.rows("SELECT DISTINCT attempt FROM runs") == [(1,)]


def test_losses_stand_beside_the_joules_that_they_cost(
    service: RunningService, finished: dict[str, Any]
) -> None:
    runs = service.get(f"/v1/experiments/{finished['id']}/runs")["items"]
    run = next(run for run in runs if run["arm"] == "phantom")
    history = service.get(f"/v1/runs/{run['id']}/metrics")
    text = str(history)
    assert "evaluation_loss" in text
    assert "train_loss" in text
    assert service.get(f"/v1/runs/{run['id']}/power") is not None


def test_ray_shows_the_job_under_its_id_and_name(service: RunningService, finished: dict[str, Any]) -> None:
    address, page = finished["ray_dashboard_url"].split("/#/jobs/")
    assert page == finished["id"] == finished["ray_job_id"]
    assert httpx.get(f"{address}/api/jobs/{page}", timeout=60).status_code == 401, (
        "Ray answers without a token"
    )
    token = (service.data_dir / "ray" / "token").read_text()
    job = httpx.get(
        f"{address}/api/jobs/{page}", headers={"Authorization": f"Bearer {token}"}, timeout=60
    ).json()
    assert job["metadata"]["job_name"] == "a small one"


def test_no_secret_is_in_the_service_log(service: RunningService, finished: dict[str, Any]) -> None:
    token = (service.data_dir / "ray" / "token").read_text().strip()
    log = service.log.read_text()
    assert token not in log
    assert "GHOSTWATT_INGEST_TOKEN" not in log


def test_more_ranks_than_the_cluster_has_are_refused_with_what_would_be_needed(
    service: RunningService,
) -> None:
    spec = SPEC | {"arms": [{"name": "wide", "strategy": "tensor", "world_size": 64}]}
    response = httpx.post(service.url + "/v1/experiments", json=spec, timeout=30)
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert "64" in response.text


@pytest.mark.parametrize(("precision", "check"), [(EASY, assert_ended_early), (HARD, assert_used_up)])
def test_rounds_are_made_until_the_ratio_is_known_or_they_are_used_up(
    service: RunningService,
    finished: dict[str, Any],
    precision: float,
    check: Callable[[RunningService, dict[str, Any]], None],
) -> None:
    check(service, service.wait_for(service.submit(auto_spec(precision)), ENDED))


def test_data_that_can_not_be_read_fail_the_experiment_once_with_the_reason(
    service: RunningService, finished: dict[str, Any]
) -> None:
    task = {"kind": "file", "path": "not there.csv", "features": ["a", "b"], "target": "c"}
    identifier = service.submit(SPEC | {"task": task | {"target_kind": "regression"}, "arms": ARMS[:2]})
    experiment = service.wait_for(identifier, ENDED)
    assert (experiment["state"], experiment["reason"]) == ("failed", "task_error"), experiment["message"]
    assert "not there.csv" in experiment["message"]
    assert experiment["attempt"] == 1


def test_a_killed_rank_s_attempt_keeps_what_it_used_and_another_attempt_goes_on_from_its_checkpoint(
    service: RunningService, finished: dict[str, Any]
) -> None:
    spec = SPEC | {
        "name": "a rank is killed",
        "resources": {"checkpoint_interval_s": 0.01},
        "training": SPEC["training"]
        | {"evaluation_interval": 500, "stop": {"kind": "steps", "steps": 8_000}},
        "measurement": {"rounds": 1, "idle_baseline_s": 0, "minimum_window_s": 1.0},
        "arms": ARMS[:1],
    }
    identifier = service.submit(spec)
    windows = "SELECT count(*) FROM windows WHERE experiment_id = ? AND phase = 'training' AND energy_mj > 0"
    wait_until(lambda: service.rows(windows, identifier)[0][0] >= 4, 240, "training windows", service.tell)
    # The first of the node has started the sampler, which tells what both used until they were gone.
    first_rank = service.get(f"/v1/experiments/{identifier}")["environment"]["ranks"][0]["process_id"]
    ranks = {process.pid: process for process in service.processes("RayTrainWorker")}
    assert len(ranks) == 2
    killed_at = datetime.now(UTC)
    ranks[first_rank].kill()
    ended = service.wait_for(identifier, ENDED, 300)
    assert (ended["state"], ended["attempt"]) == ("succeeded", 2), (ended["message"], service.tell())
    (run,) = service.get(f"/v1/experiments/{identifier}/runs")["items"]
    killed, made = service.get(f"/v1/runs/{run['id']}")["attempts"]
    assert (killed["outcome"], killed["reason"]) == ("failed", "worker_lost")
    assert killed["energy_mj"] > 0
    assert killed["energy_interrupted_mj"] is None or killed["energy_interrupted_mj"] > 0
    assert killed["energy_reason"]
    assert (made["outcome"], made["energy_interrupted_mj"]) == ("succeeded", None)
    assert made["energy_mj"] > 0
    assert run["steps"] == 8_000
    assert "resumed" in run["flags"]
    training = "SELECT attempt, number, energy_mj FROM windows WHERE experiment_id = ? AND phase = 'training'"
    windows_made = service.rows(training, identifier)
    first = min(number for attempt, number, _ in windows_made if attempt == 2)
    assert first >= 1, (
        "two windows of two ranks had been told when one was killed; the first of them was saved"
    )
    counted = [mj for attempt, number, mj in windows_made if attempt == 2 or number < first]
    assert run["energy_training_mj"] == pytest.approx(sum(counted))
    samples = (
        "SELECT max(ended_at) FROM power_samples JOIN devices ON devices.key = device_key "
        "WHERE experiment_id = ? AND experiment_attempt = 1"
    )
    ((last,),) = service.rows(samples, identifier)
    assert datetime.fromisoformat(last).replace(tzinfo=UTC) > killed_at, "its sampler went on"
    wait_until(
        lambda: len(service.processes("SamplerActor")) == 1,
        120,
        "the killed group's sampler gone",
        service.tell,
    )
    of_both = "SELECT experiment_attempt, count(*) FROM windows WHERE experiment_id = ? GROUP BY 1"
    assert [attempt for attempt, _ in service.rows(of_both, identifier)] == [1, 2]


def test_a_cancel_and_then_ctrl_c_in_mid_run_leave_nothing_behind(
    service: RunningService, finished: dict[str, Any], tmp_path: Path
) -> None:
    long = SPEC | {
        "name": "a long one",
        "training": SPEC["training"] | {"stop": {"kind": "steps", "steps": 100_000}},
        "measurement": {"rounds": 3, "idle_baseline_s": 0},
        "arms": ARMS[:2],
    }
    cancelled = service.submit(long)
    service.wait_for(cancelled, {"running"})
    assert httpx.post(f"{service.url}/v1/experiments/{cancelled}/cancel", timeout=60).status_code == 202
    ended = service.wait_for(cancelled, ENDED)
    assert ended["state"] == "cancelled"
    assert ended["reason"] == "cancelled_by_user"
    assert set(ended["runs"]) == {"cancelled"}

    interrupted = service.submit(long)
    service.wait_for(interrupted, {"running"})
    family = service.family()
    names = {process.pid: title(process) for process in family}
    assert any("raylet" in name for name in names.values())
    sockets = {
        connection.laddr
        for process in [psutil.Process(service.process.pid), *family]
        for connection in _listening(process)
    }
    assert service.end(signal.SIGINT) in {0, 130}
    left = [names.get(process.pid, "?") for process in family if _alive(process)]
    assert left == []
    wait_until(lambda: not (sockets & _all_listening()), 60, "closed sockets")


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _listening(process: psutil.Process) -> list[Any]:
    try:
        return [c for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    except psutil.Error:
        return []


def _all_listening() -> set[Any]:
    time.sleep(0.1)
    return {c.laddr for c in psutil.net_connections("inet") if c.status == psutil.CONN_LISTEN}
