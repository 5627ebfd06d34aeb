"""The embedded head of a real Ray is killed in mid-run: what it ran is run again by the next one."""

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.running import RunningService, running_service, wait_until

pytestmark = pytest.mark.timeout(900)

ENDED = {"succeeded", "failed", "lost", "cancelled"}
SPEC: dict[str, Any] = {
    "name": "on a head that is killed",
    "task": {"kind": "digits"},
    "model": {"width": 64, "depth": 2},
    "training": {"batch_size": 64, "evaluation_interval": 500, "stop": {"kind": "steps", "steps": 4_000}},
    "arms": [{"name": "tensor", "strategy": "tensor", "world_size": 2}],
    "controls": False,
    "measurement": {"rounds": 1, "minimum_window_s": 1.0, "idle_baseline_s": 0},
}


def test_a_head_killed_in_mid_run_is_started_again_with_what_it_ran(tmp_path: Path) -> None:
    with running_service(tmp_path) as service:
        identifier = service.submit(SPEC)
        service.wait_for(identifier, {"running"})
        before = _family(service)
        for process in before:
            if "gcs_server" in _title(process) or "raylet/raylet" in _title(process):
                os.kill(process.pid, signal.SIGKILL)
        ended = service.wait_for(identifier, ENDED, 400)
        assert ended["state"] == "succeeded", (ended["message"], service.tell())
        lost, made = service.get(f"/v1/experiments/{identifier}")["attempts"]
        assert lost["reason"] in {"job_unknown", "job_failed"}, "Ray forgot it, or saw it die"
        assert made["reason"] is None
        wait_until(
            lambda: not any(process.is_running() and _is_alive(process) for process in before),
            60,
            "end of all that the first head had started",
            lambda: "\n".join(_title(process) for process in before if process.is_running()),
        )


def _family(service: RunningService) -> list[psutil.Process]:
    return psutil.Process(service.process.pid).children(recursive=True)


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
