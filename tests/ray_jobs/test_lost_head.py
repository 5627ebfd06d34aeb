"""The embedded head of a real Ray is killed in mid-run: what it ran is run again by the next one."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.ray_jobs.short_experiments import longer
from tests.running import ENDED, running_service, title, wait_until

pytestmark = pytest.mark.timeout(900)

SPEC = longer(12_000, 1_500, name="on a head that is killed")


def test_a_head_killed_in_mid_run_is_started_again_with_what_it_ran(tmp_path: Path) -> None:
    with running_service(tmp_path) as service:
        identifier = service.submit(SPEC)
        service.wait_for(identifier, {"running"})
        before = service.family()
        for process in before:
            if "gcs_server" in title(process) or "raylet/raylet" in title(process):
                with suppress(ProcessLookupError):  # with one of them gone, Ray ends the other itself
                    os.kill(process.pid, signal.SIGKILL)
        ended = service.wait_for(identifier, ENDED, 400)
        assert ended["state"] == "succeeded", (ended["message"], service.tell())
        lost, made = service.get(f"/v1/experiments/{identifier}")["attempts"]
        assert lost["reason"] in {"job_unknown", "job_failed", "worker_lost"}, (
            "Ray forgot it, or saw it or its ranks die"
        )
        assert made["reason"] is None
        wait_until(
            lambda: not any(process.is_running() and _is_alive(process) for process in before),
            60,
            "end of all that the first head had started",
            lambda: "\n".join(title(process) for process in before if process.is_running()),
        )


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
