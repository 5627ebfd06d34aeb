"""The spec that the API's description shows; a test holds that it is valid."""

from typing import Any

SPEC: dict[str, Any] = {
    "name": "digits with 14 ghosts",
    "tags": {"team": "vision"},
    "task": {"kind": "digits"},
    "model": {"width": 512, "depth": 4},
    "training": {
        "batch_size": 256,
        "learning_rate": 0.001,
        "stop": {"kind": "target_loss", "target_loss": 0.15, "max_steps": 2000},
        "evaluation_interval": 20,
    },
    "arms": [
        {"name": "tensor", "strategy": "tensor", "form": "column_row", "world_size": 2},
        {"name": "phantom", "strategy": "phantom", "ghosts": 14, "world_size": 2},
    ],
    "controls": True,
    "measurement": {"rounds": 5},
}
"""A small experiment on scikit-learn's digits."""

EVENT_STREAM = """\
id: 4711
event: state
data: {"id":4711,"kind":"state","experiment_id":"exp-01jd0000000000000000000000","run_id":null,"attempt":1,\
"at":"2026-01-01T00:00:00Z","is_last":true,"data":{"from":"running","to":"succeeded","reason":null,"message":null}}

"""
"""One event of an experiment's stream: the one that ends it."""
