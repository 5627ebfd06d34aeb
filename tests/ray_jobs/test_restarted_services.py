"""Services with a head of their own, a real one, are told to end in mid-run: what runs goes on, and nothing is lost."""

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.ray_jobs.short_experiments import longer
from tests.running import ENDED, RunningService, free_port, start_service, wait_until

LEASE_S = 60
pytestmark = pytest.mark.timeout(900)

STEPS = 24_000
SPEC = longer(STEPS, 500, name="on a head that others use", resources={"checkpoint_interval_s": 0.01})


def test_a_head_outlives_the_first_service_that_leaves_and_what_ran_goes_on_after_the_last_one_s_restart(
    tmp_path: Path,
) -> None:
    """Two services, one folder. The first to be told to end has started the head."""
    with ExitStack() as stack:

        def start() -> RunningService:
            service = start_service(
                tmp_path, free_port(), GHOSTWATT_ATTEMPTS="1", GHOSTWATT_LEASE_TTL_S=str(LEASE_S)
            )
            stack.callback(lambda: service.process.poll() is None and service.end(signal.SIGTERM))
            service.wait_until_ready()
            return service

        first, second = start(), start()
        identifier = first.submit(SPEC)

        def wait_for_windows(service: RunningService, attempt: int) -> None:
            query = (
                "SELECT count(*) FROM windows JOIN runs ON runs.key = run_key WHERE phase = 'training' "
                "AND runs.experiment_id = ? AND windows.experiment_attempt = ?"
            )
            wait_until(
                lambda: service.rows(query, identifier, attempt)[0][0] >= 4, 240, "windows", service.tell
            )

        wait_for_windows(first, 1)
        assert first.end(signal.SIGTERM) == 0
        owner = f":{second.process.pid}:"
        wait_until(
            lambda: owner in (second.rows("SELECT lease_owner FROM experiments")[0][0] or ""),
            LEASE_S - 5,
            "a takeover before the lease would have run out",
            second.tell,
        )
        before = second.rows("SELECT count(*) FROM events WHERE experiment_id = ?", identifier)[0][0]
        wait_until(
            lambda: (
                second.rows("SELECT count(*) FROM events WHERE experiment_id = ?", identifier)[0][0]
                > before + 20
            ),
            60,
            "the same job, heard by the other service",
            second.tell,
        )
        (attempt,) = attempts(second, identifier)
        assert attempt["reason"] is None, "nothing was started again"

        wait_for_windows(second, 1)
        assert second.end(signal.SIGTERM) == 0
        assert second.rows("SELECT state, reason FROM experiments") == [("queued", "service_ended")]
        third = start()
        experiment = third.wait_for(identifier, ENDED, 400)
        assert experiment["state"] == "succeeded", (experiment["message"], third.tell())
        assert [each["reason"] for each in attempts(third, identifier)] == ["service_ended", None]
        (run,) = third.get(f"/v1/experiments/{identifier}/runs")["items"]
        assert run["steps"] == STEPS
        assert "resumed" in run["flags"]
        made = third.get(f"/v1/runs/{run['id']}")["attempts"]
        assert [each["reason"] for each in made] == ["service_ended", None]
        assert all(each["energy_mj"] > 0 for each in made)


def attempts(service: RunningService, identifier: str) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = service.get(f"/v1/experiments/{identifier}")["attempts"]
    return told
