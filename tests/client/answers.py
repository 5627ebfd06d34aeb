"""Answers of a service that isn't there, for tests of the client."""

import json

import httpx

from client.models import ExperimentDetail


def problem(status: int, code: str = "not-found", **more: object) -> httpx.Response:
    document = {"type": "t", "title": "t", "status": status, "detail": "what happened", "code": code, **more}
    return httpx.Response(
        status, content=json.dumps(document), headers={"Content-Type": "application/problem+json"}
    )


def experiment(state: str) -> httpx.Response:
    timings = dict.fromkeys(["queued_s", "cluster_s", "start_up_s", "set_up_s", "running_s"])
    document: dict[str, object] = {
        **dict.fromkeys(name for name in ExperimentDetail.model_fields),
        "id": "exp-1",
        "name": "x",
        "description": "",
        "tags": {},
        "state": state,
        "is_terminal": state == "succeeded",
        "priority": 0,
        "attempt": 1,
        "baseline": "tensor",
        "arms": [],
        "rounds": 1,
        "runs": {},
        "phase": {"name": "queued", "since": "2026-01-01T00:00:00Z", "elapsed_s": 1.0},
        "timings": {**timings, "total_s": 1.0},
        "submitted_at": "2026-01-01T00:00:00Z",
        "devices": [],
        "spec": {},
    }
    return httpx.Response(200, json=document)
