"""Holds the API's description to the one that is checked in, so that no change of it goes unseen.

`python -m tests.api.test_openapi_snapshot` writes it anew.
"""

import json
import re
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import api.examples as examples
from api.app import create_app
from api.bodies import Pause
from api.routes.queue import QueueView
from api.routes.submissions import Accepted
from phantom_core.protocol import EventBatch, GroupEnded, NextAnswer, NextRequest
from services.settings import Settings
from services.views import FindingView, IngestResult, Page

SNAPSHOT = Path(__file__).with_name("openapi.json")
CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
WRITERS = ("fastapi", "pydantic", "pydantic_core")
"""Packages whose version decides how the same models are described."""


def document() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        made = create_app(Settings(data_dir=Path(folder))).openapi()
    return {**made, "info": {**made["info"], "version": "-"}}


def written(described: dict[str, Any]) -> str:
    return json.dumps(described, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def test_the_description_is_the_one_that_is_checked_in() -> None:
    pinned = dict(re.findall(r"^(\w+)==(\S+)", CONSTRAINTS.read_text(), re.MULTILINE))
    other = [f"{name} {version(name)}" for name in WRITERS if version(name) != pinned[name]]
    if other:
        pytest.skip(f"described by {', '.join(other)}, which is not what constraints.txt names")
    assert written(document()) == SNAPSHOT.read_text(), "run `python -m tests.api.test_openapi_snapshot`"


def test_every_body_is_shown_by_an_example() -> None:
    for path, operations in document()["paths"].items():
        for method, operation in operations.items():
            for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                assert content.get("example"), (method, path, kind)


def test_the_examples_are_what_the_models_take() -> None:
    models: dict[tuple[str, ...], type[BaseModel]] = {
        ("post", "/internal/v1/events"): EventBatch,
        ("post", "/v1/queue/pause"): Pause,
        ("post", "/internal/v1/next"): NextRequest,
        ("post", "/internal/v1/group-ended"): GroupEnded,
        ("get", "/v1/queue", "200"): QueueView,
        ("get", "/v1/findings", "200"): Page[FindingView],
        ("post", "/internal/v1/events", "200"): IngestResult,
        ("post", "/internal/v1/next", "200"): NextAnswer,
    }
    for place, example in (examples.REQUESTS | examples.RESPONSES).items():
        models.get(place, Accepted).model_validate_json(json.dumps(example))


if __name__ == "__main__":
    SNAPSHOT.write_text(written(document()))
