"""A short experiment on two ranks, for tests that care for what happens around it."""

from typing import Any

SHORT: dict[str, Any] = {
    "name": "a short one",
    "task": {"kind": "digits"},
    "model": {"width": 64, "depth": 2},
    "training": {"batch_size": 64, "evaluation_interval": 10, "stop": {"kind": "steps", "steps": 20}},
    "arms": [{"name": "tensor", "strategy": "tensor", "world_size": 2}],
    "controls": False,
    "measurement": {"rounds": 1, "minimum_window_s": 1.0, "idle_baseline_s": 0},
}


def longer(steps: int, evaluation_interval: int, **changes: Any) -> dict[str, Any]:
    """The same for as many steps."""
    training = SHORT["training"] | {
        "evaluation_interval": evaluation_interval,
        "stop": {"kind": "steps", "steps": steps},
    }
    return SHORT | {"training": training} | changes
