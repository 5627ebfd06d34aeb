"""Experiments submitted to a real service on this host's boards, as a user would; what it answers is the result.

    python -m benchmarks.main_job [--ranks 2] [--only demo wide cancel kill] [--append] [--out FILE]

Runs the demo's GPU experiment and `specs/wide.yaml` (n = 16384), each with controls and five rounds, through REST,
Ray Train, NCCL and NVML. Then it cancels a third in mid-run and looks whether the boards are free, and kills a
rank of a fourth: the next attempt makes its runs, and what the killed one spent stays told apart. Each row says
which card and command it comes from, and is written as soon as it is there.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import torch
import yaml

from benchmarks.record import command_line, record, recorded_rows, surroundings
from client.demo_specs import gpu_demo
from client.service_process import free_port

SPECS = Path(__file__).parent / "specs"
PARTS = ("demo", "wide", "cancel", "kill")
LEFT_OUT = {"id", "experiment_id", "is_terminal", "seed"}
"""Of a run's fields, those that say nothing after the service is gone."""
FREE_BOARDS = {"GHOSTWATT_KEEP_GROUP_S": "0"}
"""No worker group stays idle, so that whatever is on the boards after an experiment is a fault."""
ENDED = {"succeeded", "failed", "cancelled", "lost"}


def main() -> None:
    """Runs all of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--append", action="store_true", help="keep the file's other rows")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "main_job.json")
    arguments = parser.parse_args()
    wide = yaml.safe_load((SPECS / "wide.yaml").read_text())
    for arm in wide["arms"]:
        arm["world_size"] = arguments.ranks
    parts: dict[str, Callable[[str], dict[str, Any]]] = {
        "demo": lambda url: run(url, gpu_demo(arguments.ranks).model_dump(mode="json")),
        "wide": lambda url: run(url, wide),
        "cancel": lambda url: cancel(url, wide),
        "kill": lambda url: kill(url, wide),
    }
    device = torch.device("cuda", 0)
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), **FREE_BOARDS) as url:
        for name in arguments.only:
            key = {"experiment": name, "ranks": arguments.ranks}
            rows = [
                row
                for row in (
                    recorded_rows(arguments.out) if arguments.append or name != arguments.only[0] else []
                )
                if {field: row[field] for field in key} != key
            ]
            made = {"command": command_line(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
            row = {**key, "origin": {**made, **surroundings(device)}, **parts[name](url)}
            record(arguments.out, [*rows, row], device)


def run(url: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Submits, waits, fetches the answer."""
    experiment = wait(url, submit(url, spec), ENDED)
    identifier = experiment["id"]
    comparison = get(url, f"/v1/experiments/{identifier}/comparison")
    runs = get(url, f"/v1/experiments/{identifier}/runs?limit=200")["items"]
    print(f"{spec['name']}: {experiment['state']} {experiment['message'] or ''}", flush=True)
    for arm in comparison["arms"]:
        for metric in arm["metrics"]:
            if metric["metric"] in {comparison["primary_metric"], "energy_per_step_mj"}:
                print(
                    f"  {arm['arm']:32} {metric['metric']:22} {metric['sentence']} {metric['flags']}",
                    flush=True,
                )
    return {
        "state": experiment["state"],
        "message": experiment["message"],
        "timings": experiment["timings"],
        "devices": experiment["devices"],
        "environment": experiment["environment"],
        "comparison": comparison,
        "runs": [{key: run[key] for key in run if key not in LEFT_OUT} for run in runs],
    }


def cancel(url: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Cancels in mid-run: seconds until the service says so, and processes left on the boards."""
    long = dict(spec) | {"name": "to be cancelled"}
    long["training"] = spec["training"] | {
        "stop": {"kind": "steps", "steps": 1_000_000, "max_steps": 1_000_000}
    }
    identifier = submit(url, long)
    wait(url, identifier, {"running"} | ENDED)
    time.sleep(5)
    asked_s = time.monotonic()
    httpx.post(f"{url}/v1/experiments/{identifier}/cancel", timeout=30).raise_for_status()
    experiment = wait(url, identifier, ENDED)
    seconds = time.monotonic() - asked_s
    busy = processes_on_boards()
    freed_s = seconds_until_free(asked_s)
    print(f"cancel: {experiment['state']} after {seconds:.1f} s, processes on boards: {busy}", flush=True)
    runs = get(url, f"/v1/experiments/{identifier}/runs?limit=200")["items"]
    spent = [run["energy_training_mj"] for run in runs if run.get("energy_training_mj") is not None]
    return {
        "state": experiment["state"],
        "seconds_until_cancelled": seconds,
        "processes_on_boards": busy,
        "seconds_until_boards_free": freed_s,
        "energy_kept_mj": spent,
    }


def kill(url: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Kills a rank without warning in the second run; what both attempts spent, and processes left on boards."""
    short = dict(spec) | {"name": "a rank is killed", "controls": False}
    short["training"] = spec["training"] | {"stop": {"kind": "steps", "steps": 900}}
    short["measurement"] = spec["measurement"] | {"rounds": 1}
    identifier = submit(url, short)
    while get(url, f"/v1/experiments/{identifier}/runs?state=succeeded")["items"] == []:
        if get(url, f"/v1/experiments/{identifier}")["state"] in ENDED:
            raise SystemExit("the experiment ended before its rank could be killed")
        time.sleep(0.2)
    time.sleep(2.5)
    ranks = rank_processes()
    killed_s = time.monotonic()
    ranks[-1].kill()
    experiment = wait(url, identifier, ENDED)
    seconds = time.monotonic() - killed_s
    ended_s = time.monotonic()
    busy = processes_on_boards()
    freed_s = seconds_until_free(ended_s)
    runs = [
        get(url, f"/v1/runs/{run['id']}") for run in get(url, f"/v1/experiments/{identifier}/runs")["items"]
    ]
    attempts = [{"arm": run["arm"], **attempt} for run in runs for attempt in run["attempts"]]
    print(f"kill: {experiment['state']} {seconds:.1f} s later, attempts: {attempts}", flush=True)
    return {
        "state": experiment["state"],
        "message": experiment["message"],
        "ranks_found": len(ranks),
        "seconds_until_ended": seconds,
        "processes_on_boards": busy,
        "seconds_until_boards_free": freed_s,
        "attempts": attempts,
    }


def seconds_until_free(since_s: float) -> float | None:
    """Seconds from a moment until NVML sees no process on any board; None if that takes half a minute."""
    deadline_s = time.monotonic() + 30
    while processes_on_boards():
        if time.monotonic() > deadline_s:
            return None
        time.sleep(0.1)
    return time.monotonic() - since_s


def rank_processes() -> list[psutil.Process]:
    """Ray Train's workers on this host, oldest first."""
    found = [
        process
        for process in psutil.process_iter(["name", "cmdline", "create_time"])
        if "RayTrainWorker" in " ".join(process.info["cmdline"] or [])
    ]
    return sorted(found, key=lambda process: float(process.info["create_time"]))


def processes_on_boards() -> list[int]:
    """Processes that NVML sees on any board."""
    import pynvml

    pynvml.nvmlInit()
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            found += [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        return found
    finally:
        pynvml.nvmlShutdown()


@contextmanager
def serving(folder: Path, **settings: str) -> Iterator[str]:
    """A service of this benchmark's own, with variables of its own."""
    port = free_port(0)
    url = f"http://127.0.0.1:{port}"
    with service_process(folder / "data", GHOSTWATT_PORT=str(port), **settings) as (process, log):
        wait_until_ready(url, log, process)
        yield url


@contextmanager
def service_process(data_dir: Path, **settings: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A service's process, and the file that its log goes to; ended at the end."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GHOSTWATT_")}
    environment |= {"GHOSTWATT_DATA_DIR": str(data_dir), **settings}
    log = data_dir.parent / "service.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "api", "serve"], env=environment, stdout=output, stderr=output
        )
    try:
        yield process, log
    finally:
        process.terminate()
        process.wait(timeout=60)


def wait_until_ready(url: str, log: Path, process: subprocess.Popen[bytes]) -> None:
    """Waits until experiments can run."""
    for _ in range(360):
        if process.poll() is not None:
            break
        try:
            if all(check["ok"] for check in get(url, "/readyz")["checks"]):
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise SystemExit(f"the service did not get ready:\n{log.read_text()[-4000:]}")


def submit(url: str, spec: Mapping[str, Any]) -> str:
    """Submits a spec."""
    response = httpx.post(f"{url}/v1/experiments", json=spec, timeout=60)
    if response.status_code != httpx.codes.ACCEPTED:
        raise SystemExit(response.text)
    return str(response.json()["id"])


def wait(url: str, identifier: str, states: set[str]) -> dict[str, Any]:
    """Waits for a state, printing progress."""
    last = None
    while True:
        experiment: dict[str, Any] = get(url, f"/v1/experiments/{identifier}")
        if (experiment["state"], experiment["progress"]) != last:
            last = (experiment["state"], experiment["progress"])
            print(f"{time.strftime('%X')} {experiment['name']}: {last[0]} {last[1] or ''}", flush=True)
        if experiment["state"] in states:
            return experiment
        time.sleep(0.5)


def get(url: str, path: str) -> Any:
    """A JSON answer."""
    response = httpx.get(url + path, timeout=60)
    response.raise_for_status()
    return response.json()


if __name__ == "__main__":
    main()
