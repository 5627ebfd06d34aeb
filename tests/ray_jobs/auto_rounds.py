"""Two experiments with `rounds: auto` for the main job's tests, and what must have become of them.

One asks for a precision that any rounds have, the other for one that none have.
"""

import re
from typing import Any

import pytest

from phantom_core.intervals import RatioInterval
from phantom_core.precision import half_width
from tests.running import RunningService

EASY, HARD = 0.99, 1e-5
FEWEST, MOST = 5, 6


def auto_spec(precision: float) -> dict[str, Any]:
    """Two arms whose windows are just long enough to be compared, for as few rounds as there may be."""
    return {
        "name": f"until {precision:g}",
        "task": {"kind": "digits"},
        "model": {"width": 32, "depth": 1},
        "training": {"batch_size": 32, "stop": {"kind": "steps", "steps": 20}},
        "arms": [
            {"name": "tensor", "strategy": "tensor", "world_size": 2},
            {"name": "blocks", "strategy": "block_diagonal", "world_size": 2},
        ],
        "controls": False,
        "measurement": {
            "rounds": "auto",
            "precision": precision,
            "max_rounds": MOST if precision == EASY else FEWEST,
            "minimum_window_s": 1.2,
            "warmup_steps": 1,
            "idle_baseline_s": 0,
        },
    }


def assert_ended_early(service: RunningService, experiment: dict[str, Any]) -> None:
    """The rounds that were not needed are skipped, with the reason, and the interval is as narrow as was asked."""
    assert experiment["state"] == "succeeded", (experiment["message"], service.tell())
    assert experiment["runs"] == {"succeeded": 2 * FEWEST, "skipped": 2 * (MOST - FEWEST)}
    assert experiment["message"] is None
    runs = service.get(f"/v1/experiments/{experiment['id']}/runs?limit=50")["items"]
    skipped = [run for run in runs if run["state"] == "skipped"]
    assert {(run["round"], run["reason"]) for run in skipped} == {(FEWEST, "precision_reached")}
    assert all("'blocks' is known to ± " in run["message"] for run in skipped)
    comparison = service.get(f"/v1/experiments/{experiment['id']}/comparison")
    primary = comparison["arms"][0]["primary"]
    assert (comparison["rounds_planned"], primary["pairs"], primary["excluded"]) == (FEWEST, FEWEST, [])
    interval = RatioInterval(primary["ratio"], primary["ratio_low"], primary["ratio_high"])
    assert half_width(interval) <= EASY
    assert primary["rounds_for_precision"] <= FEWEST


def assert_used_up(service: RunningService, experiment: dict[str, Any]) -> None:
    """All rounds are made, and it says how precise they were and how many could be expected to do."""
    assert experiment["state"] == "succeeded", (experiment["message"], service.tell())
    assert experiment["runs"] == {"succeeded": 2 * FEWEST}
    said = experiment["message"]
    assert said.startswith(f"max_rounds = {FEWEST} rounds were made, and 'blocks' is known to ± ")
    comparison = service.get(f"/v1/experiments/{experiment['id']}/comparison")
    primary = comparison["arms"][0]["primary"]
    assert (comparison["rounds_planned"], primary["pairs"], primary["excluded"]) == (FEWEST, FEWEST, [])
    assert comparison["precision"] == HARD
    assert primary["rounds_for_precision"] > 1_000 * FEWEST
    told = re.search(r"which can be expected of (\d+) rounds$", said)
    assert told is not None
    assert int(told[1]) == pytest.approx(primary["rounds_for_precision"], rel=1e-6)
    asked = service.get(f"/v1/experiments/{experiment['id']}/comparison?precision={EASY}")
    assert asked["arms"][0]["primary"]["rounds_for_precision"] < primary["rounds_for_precision"]
