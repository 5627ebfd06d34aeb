"""The API's description: what FastAPI derives, with problem documents in place of its own error models."""

import threading
from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from api import examples
from api.bodies import Pause
from api.errors import MEDIA_TYPE, Problem
from phantom_core.described import description_of
from phantom_core.protocol import EventBatch, GroupEnded, NextRequest
from phantom_core.spec import ExperimentSpec
from services.views import Occurrence

SUMMARY = "How many joules a way of splitting a large feed-forward network costs, and how many another saves."
DESCRIPTION = """
Submit an experiment (`POST /v1/experiments`), watch it (`GET /v1/experiments/{id}`), read its answer
(`GET /v1/experiments/{id}/comparison`).

- **Errors** are problem documents (RFC 9457, `application/problem+json`) with a stable `code`, and `errors`
  that name the fields, their values and the way out.
- **Floats** that JSON has no numbers for are null, and `non_finite` beside them says which (`nan`, `inf`,
  `-inf`). Any other null means that a value isn't known; a reason stands beside it.
- **Energy** is in millijoules (`_mj`), power in milliwatts (`_mw`), time in seconds (`_s`) or UTC.
- **Keys**: on loopback none is needed unless `GHOSTWATT_REQUIRE_KEYS=1`; on every other address each request
  carries `Authorization: Bearer KEY`. `x-ghostwatt-scope` says which scope an address needs.
- **Retries**: send an `Idempotency-Key` with a submission and it is made once, however often it is sent.
- **Every answer** carries `X-Request-ID`. What is read as JSON (but for `/healthz` and `/readyz`) carries an `ETag`
  and is a 304 to `If-None-Match`.
- **Query parameters** that an address doesn't have are a 422 that names those it has.
"""

TAGS = [
    {"name": "experiments", "description": "Submit, find, cancel and delete experiments."},
    {"name": "runs", "description": "One arm in one round: its metrics, its power."},
    {"name": "comparisons", "description": "The answer: arms paired by round; verdicts across experiments."},
    {"name": "queue", "description": "Hold experiments back, and let them go."},
    {"name": "health", "description": "Whether the service is up and can work."},
    {"name": "internal", "description": "For the job of an experiment only, with its own token."},
]

UNSEEN_MODELS: tuple[type[BaseModel], ...] = (
    *(Problem, ExperimentSpec, Occurrence, Pause),
    *(EventBatch, NextRequest, GroupEnded),
)
"""Models of bodies and answers that no route declares to FastAPI, since it may not parse them."""

COMMON_PROBLEMS = {
    "400": "The request can't be read.",
    "401": "A key is needed, or the one given is not valid.",
    "403": "The key's scopes don't allow it, or a page of another origin asked.",
    "421": "The service does not answer to this Host.",
    "429": "Too many requests from one caller; `Retry-After` says when to come back.",
    "500": "The service met an error it did not expect.",
    "431": "The headers are too long or too many.",
    "503": "The database does not answer, or too many long documents are being read; try again.",
}
"""Problems that any address may answer with."""


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route: the problems that are its own, besides `COMMON_PROBLEMS`."""
    texts = {
        404: "Nothing has that id.",
        409: "The state, or a request in flight, does not allow it.",
        413: "The body is too long.",
        416: "Nothing of that range is kept; `Content-Range` says how long the log is.",
        415: "The body's content type is not taken here.",
        422: "A field is wrong; `errors` names each.",
        503: "The database does not answer, or no more streams are served; try again.",
    }
    return {status: {"description": texts[status]} for status in statuses}


def install(app: FastAPI, routers: Iterable[APIRouter]) -> None:
    """Makes `app.openapi()` give the description of the routers, computed once."""
    # Two first requests at once would both pay for it, and build FastAPI's models of it against each other.
    once = threading.Lock()

    def openapi() -> dict[str, Any]:
        with once:
            if app.openapi_schema is None:
                app.openapi_schema = _described(app, routers)
            return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend it


def _described(app: FastAPI, routers: Iterable[APIRouter]) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=app.description,
        routes=app.routes,
        tags=TAGS,
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    _, unseen = models_json_schema(
        [(model, "validation") for model in UNSEEN_MODELS], ref_template="#/components/schemas/{model}"
    )
    schemas.update(unseen["$defs"])
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    _describe_queries(document["paths"], routers)
    _show_examples(document["paths"])
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for operations in document["paths"].values():
        for operation in operations.values():
            _describe_problems(operation, content)
    return document


def _describe_queries(paths: dict[str, Any], routers: Iterable[APIRouter]) -> None:
    """Docstrings of a query's fields, of which FastAPI knows nothing, as its parameters' descriptions."""
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    for route in (route for route in routes if route.include_in_schema):
        for model in (query.field_info.annotation for query in route.dependant.query_params):
            if not isinstance(model, type) or not issubclass(model, BaseModel):
                continue
            for method in route.methods or ():
                for parameter in paths[route.path_format][method.lower()]["parameters"]:
                    if parameter["in"] == "query":
                        text = description_of(model, parameter["name"])
                        parameter["description"] = parameter["schema"]["description"] = text


def _show_examples(paths: dict[str, Any]) -> None:
    for (method, path), example in examples.REQUESTS.items():
        paths[path][method]["requestBody"]["content"]["application/json"]["example"] = example
    for (method, path, status), example in examples.RESPONSES.items():
        paths[path][method]["responses"][status]["content"]["application/json"]["example"] = example


def _describe_problems(operation: dict[str, Any], content: dict[str, Any]) -> None:
    responses = operation["responses"]
    for status, text in COMMON_PROBLEMS.items():
        responses.setdefault(status, {"description": text})
    for status, response in responses.items():
        if int(status) >= 400 and (status != "503" or "content" not in response):
            response["content"] = content
            if status == "422":
                response["description"] = "A field is wrong; `errors` names each."
    if operation.get("x-ghostwatt-scope") == "nothing":
        operation["security"] = []
