"""Seconds from submission to the first training step: an experiment cold and warm, beside a bare TorchTrainer job.

    python -m benchmarks.startup [--rounds 5] [--out benchmarks/results/startup.json]

All on one Ray head (the service's own), two ranks over gloo, one after the other in every round: the bare job, an
experiment in a worker group of its own, and another in the group that the last one left. Ours ends at the first
*measured* step, after data, model and warm-up, without an idle baseline; the bare job ends when its only step is done.
"""

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from benchmarks.job_cpu import CpuWatch
from benchmarks.main_job import ENDED, get, serving, submit, wait
from benchmarks.record import record

KEEP_GROUP_S = 10
GROUP_GONE_S = KEEP_GROUP_S + 12.0
"""Seconds after which a worker group has ended for want of work, processes and all."""
IDLE_S = 4.0
"""Seconds that a finished experiment's group has to clean up, and a person to submit the next."""
BARE_DEADLINE_S = 240.0

SPEC: dict[str, Any] = {
    "name": "start-up",
    "task": {"kind": "digits"},
    "model": {"width": 64, "depth": 2},
    "training": {"batch_size": 64, "evaluation_interval": 10, "stop": {"kind": "steps", "steps": 20}},
    "arms": [{"name": "tensor", "strategy": "tensor", "world_size": 2}],
    "controls": False,
    "measurement": {"rounds": 1, "idle_baseline_s": 0, "minimum_window_s": 1.0},
    "resources": {"device": "cpu", "cpus_per_rank": 1},
}


def main() -> None:
    """Measures all three in every round."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "startup.json")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as name,
        serving(Path(name), GHOSTWATT_KEEP_GROUP_S=str(KEEP_GROUP_S)) as url,
    ):
        for number in range(arguments.rounds):
            sides: dict[str, Callable[[], dict[str, Any]]] = {
                "bare": partial(bare, Path(name), number),
                "cold": partial(ours, url, warm=False),
                "warm": partial(ours, url, warm=True),
            }
            for side, measure in sides.items():
                rows.append({"round": number, "side": side, **with_cpu(Path(name), measure)})
                print(rows[-1], flush=True)
            time.sleep(GROUP_GONE_S)
    record(arguments.out, rows)


def with_cpu(folder: Path, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was measured, with the processor seconds that Ray's processes spent, up to the first step and in all."""
    head = json.loads((folder / "data" / "ray" / "head.json").read_text())
    with CpuWatch(int(head["leader"]["pid"])) as watch:
        began_s = time.time()
        measured = measure()
        ended_s = time.time()
    # A warm one waits before it submits, so the time of its first step isn't known from here.
    until_s = began_s + measured["first_step_s"]
    cold = measured.pop("is_cold", True)
    first = {"cpu_to_first_step_s": watch.total_s(until_s)} if cold else {}
    return {**measured, **first, "cpu_s": watch.total_s(ended_s)}


def ours(url: str, *, warm: bool) -> dict[str, Any]:
    """One experiment, with the parts of its wait."""
    if warm:
        time.sleep(IDLE_S)
    experiment = wait(url, submit(url, SPEC), ENDED)
    (attempt,) = get(url, f"/v1/experiments/{experiment['id']}")["attempts"]
    if experiment["state"] != "succeeded" or attempt["warm"] is not warm:
        raise SystemExit(f"not what was to be measured: {experiment['message']}, {attempt}")
    parts = {name: attempt[name] for name in ("queued_s", "cluster_s", "start_up_s", "set_up_s")}
    return {"first_step_s": sum(parts.values()), **parts, "is_cold": not warm}


def bare(folder: Path, number: int) -> dict[str, Any]:
    """One TorchTrainer job, submitted to the same head."""
    head = json.loads((folder / "data" / "ray" / "head.json").read_text())
    token = (folder / "data" / "ray" / "token").read_text().strip()
    script, said = Path(__file__).with_name("bare_trainer.py"), folder / f"bare-{number}"
    body = {
        "submission_id": f"bare-{number}",
        "entrypoint": f"exec {shlex.join([sys.executable, str(script), str(said)])}",
    }
    with httpx.Client(base_url=head["address"], headers={"Authorization": f"Bearer {token}"}) as http:
        submitted_s = time.time()
        http.post("/api/jobs/", json=body, timeout=30).raise_for_status()
        while time.time() - submitted_s < BARE_DEADLINE_S:
            status = http.get(f"/api/jobs/bare-{number}", timeout=30).json()["status"]
            if status == "SUCCEEDED":
                return {"first_step_s": float(said.read_text()) - submitted_s}
            if status in {"FAILED", "STOPPED"}:
                break
            time.sleep(0.5)
        logs = http.get(f"/api/jobs/bare-{number}/logs", timeout=30).text
    raise SystemExit(f"the bare job did not end well: {logs[-2000:]}")


if __name__ == "__main__":
    main()
