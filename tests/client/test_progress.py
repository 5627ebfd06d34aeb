"""What is shown of an experiment while it is waited for."""

import io
from typing import Any

from rich.console import Console

from client.models import ExperimentDetail, Run
from client.progress import ExperimentProgress, Waiting
from tests.client.answers import experiment


def run(number: int, state: str, message: str | None = None) -> Run:
    """One that has ended; what it measured is not known."""
    unknown: dict[str, Any] = dict.fromkeys(Run.model_fields)
    told = {"id": f"run-{number}", "arm": "phantom", "round": number, "state": state, "message": message}
    return Run.model_construct(**{**unknown, **told, "is_terminal": True})


def shown(runs: list[Run]) -> list[str]:
    """Lines that are left behind once they all ended."""
    console = Console(file=io.StringIO(), width=200)
    found = ExperimentDetail.model_validate_json(experiment("running").content)
    found = found.model_copy(update={"runs": {"failed": len(runs)}})
    with Waiting(console) as waiting:
        ExperimentProgress(waiting, lambda _: runs).update(found)
    assert isinstance(console.file, io.StringIO)
    return [line.split("] ", 1)[1] for line in console.file.getvalue().splitlines()]


def test_runs_that_ended_for_one_reason_are_told_once() -> None:
    runs = [run(number, "cancelled", "no capacity") for number in range(25)]
    lines = shown([run(25, "succeeded"), *runs, run(26, "failed", "another"), run(27, "succeeded")])
    assert [line for line in lines if "no capacity" in line] == ["round 1  phantom  cancelled: no capacity"]
    assert "24 more runs cancelled for the same reason" in lines
    assert "round 27  phantom  failed: another" in lines
    assert sum("succeeded" in line for line in lines) == 2
