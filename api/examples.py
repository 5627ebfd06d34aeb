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
    "resources": {"priority": 0, "deadline_s": 3600},
}
"""A small experiment on scikit-learn's digits."""

EVENT_STREAM = """\
id: 4711
event: state
data: {"id":4711,"kind":"state","experiment_id":"exp-01jd0000000000000000000000","run_id":null,"attempt":1,\
"at":"2026-01-01T00:00:00Z","is_last":true,"data":{"from":"running","to":"succeeded","reason":null,"message":null}}

"""
"""One event of an experiment's stream: the one that ends it."""

_EXPERIMENT = "exp-01jd0000000000000000000000"

REQUESTS: dict[tuple[str, str], dict[str, Any]] = {
    ("post", "/internal/v1/events"): {
        "experiment_id": _EXPERIMENT,
        "events": [
            {
                "subject_id": f"{_EXPERIMENT}-r000-a01",
                "attempt": 1,
                "source": "rank-0",
                "seq": 7,
                "at": "2026-01-01T00:00:00Z",
                "payload": {
                    "kind": "metrics",
                    "points": [{"name": "train_loss", "step": 20, "value": 0.31}],
                },
            }
        ],
    },
    ("post", "/v1/queue/pause"): {"reason": "new driver"},
    ("post", "/internal/v1/next"): {"group_id": _EXPERIMENT, "finished": _EXPERIMENT, "device": "cuda"},
    ("post", "/internal/v1/group-ended"): {"group_id": _EXPERIMENT, "outcome": "succeeded"},
}
"""Bodies by method and path, where a route shows none itself."""

RESPONSES: dict[tuple[str, str, str], dict[str, Any]] = {
    ("post", "/v1/experiments", "202"): {"id": _EXPERIMENT, "state": "queued"},
    ("post", "/v1/experiments/{experiment_id}/cancel", "202"): {"id": _EXPERIMENT, "state": "running"},
    ("delete", "/v1/experiments/{experiment_id}", "202"): {"id": _EXPERIMENT, "state": "running"},
    ("get", "/v1/queue", "200"): {
        "paused": True,
        "reason": "new driver",
        "paused_at": "2026-01-01T00:00:00Z",
        "queued": 3,
        "by_priority": [{"priority": 5, "queued": 1}, {"priority": 0, "queued": 2}],
        "oldest_queued_s": 12.5,
    },
    ("get", "/v1/findings", "200"): {
        "items": [
            {
                "arm": "phantom",
                "metric": "energy_to_target_mj",
                "verdict": "saves",
                "sentence": "saves 41 % (95 % interval 38 to 44 %, 5 rounds)",
                "ratio": 0.59,
                "ratio_low": 0.56,
                "ratio_high": 0.62,
                "experiment_id": _EXPERIMENT,
                "experiment_name": "tensor against phantom",
                "tags": {"team": "vision"},
                "submitted_at": "2026-01-01T00:00:00Z",
                "devices": ["NVIDIA H100 80GB HBM3"],
                "strategy": "phantom",
                "world_size": 4,
                "width": 16384,
                "depth": 8,
                "ghosts": 64,
                "dtype": "bfloat16",
                "baseline": "tensor",
                "is_primary": True,
                "pairs": 5,
                "estimated": False,
                "loss_differs": False,
                "flags": [],
            }
        ],
        "next_cursor": None,
    },
    ("post", "/internal/v1/events", "200"): {"accepted": 1, "duplicates": 0, "rejected": {}},
    ("post", "/internal/v1/next", "200"): {"action": "wait"},
}
"""Answers by method, path and status. The figures only show what a field looks like."""
