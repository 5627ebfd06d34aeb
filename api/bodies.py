"""From a request's body to a spec: JSON or YAML by content type, not trusted to be small, flat or finite."""

import email.message
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect

from api.context import context_of
from api.errors import MAX_FIELD_PROBLEMS, ApiError, FieldProblem, field_problem, shown, validation_problems
from api.headers import header
from api.heavy import HEAVY_JSON_BYTES, HEAVY_YAML_BYTES
from phantom_core.described import describe
from phantom_core.documents import DocumentError, parse_json, parse_yaml
from phantom_core.problems import problems_of
from phantom_core.spec import ExperimentSpec

JSON_TYPES = frozenset({"application/json"})
YAML_TYPES = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"})

SHORT_JSON_BYTES = 2 * 1024
"""JSON that is no longer is read and planned between other requests' turns: a fraction of a millisecond, some of them
for one that is full of mistakes."""


class Pause(BaseModel):
    """Why the queue is paused."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=describe)

    reason: Annotated[
        str,
        Field(min_length=1, max_length=200, pattern=r"^[^\x00]*[^\s\x00][^\x00]*$", examples=["new driver"]),
    ]
    """For whoever wonders why nothing begins."""


async def raw_body(request: Request) -> bytes:
    """The body as it came, at most as long as `limits.RequestLimits` lets through."""
    return await request.body()


async def plain_body(request: Request) -> bytes:
    """The same for a direct route, where nobody else has read any of it: without Starlette's stream of parts.

    Raises:
        ClientDisconnect: Whoever sent it has gone away.
    """
    parts = []
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


RawBody = Annotated[bytes, Depends(raw_body)]


def is_short(request: Request, body: bytes) -> bool:
    """Whether a body is read in less time than another thread takes to begin."""
    return len(body) <= SHORT_JSON_BYTES and header(request.scope, b"content-type") in JSON_TYPES


def parse_spec(request: Request, body: bytes) -> ExperimentSpec:
    """The spec in a body.

    Raises:
        ApiError: 415 for another content type, 400 for text that can't be read, 422 for a document that is no
            spec, with a problem per field, 503 if too many long documents are being read.
    """
    kind = check_content_type(request, YAML_TYPES | JSON_TYPES)
    if not body:
        raise ApiError(400, "empty-body", "the body is empty; send a spec")
    heavy_bytes = HEAVY_JSON_BYTES if kind in JSON_TYPES else HEAVY_YAML_BYTES
    with context_of(request).heavy.turn(is_heavy=len(body) > heavy_bytes):
        return _read(kind, body)


def _read(kind: str, body: bytes) -> ExperimentSpec:
    try:
        document = parse_json(body.decode()) if kind in JSON_TYPES else parse_yaml(body.decode())
    except (DocumentError, UnicodeDecodeError) as error:
        detail = f"the body can't be read {shown(str(error), 500)}"
        raise ApiError(400, "unreadable-body", detail) from error
    try:
        return ExperimentSpec.model_validate(document)
    except ValidationError as error:
        found = problems_of(error, most=MAX_FIELD_PROBLEMS)
        problems = [
            field_problem(problem.field, problem.value, problem.limit, problem.message) for problem in found
        ]
        raise _invalid(problems, error.error_count()) from error


def check_content_type(request: Request, types: frozenset[str]) -> str:
    """The body's content type, without its parameters.

    Raises:
        ApiError: 415 if it is none of `types`, or the charset is not UTF-8.
    """
    sent = header(request.scope, b"content-type") or ""
    if sent in types:
        return sent
    message = email.message.Message()
    message["content-type"] = sent
    given = message.get_content_type() if sent else ""
    if given not in types:
        accepted = " or ".join(sorted(types & {"application/json", "application/yaml"}))
        detail = f"the body's content type is {shown(given) or 'not given'}; send {accepted}"
        raise ApiError(415, "unsupported-media-type", detail, headers={"Accept": ", ".join(sorted(types))})
    charset = message.get_content_charset("utf-8")
    if charset not in ("utf-8", "utf8", "us-ascii"):
        raise ApiError(415, "unsupported-charset", f"the body's charset is {shown(charset)}; send UTF-8")
    return given


Document = TypeVar("Document", bound=BaseModel)


def parse_json_as(model: type[Document], request: Request, body: bytes) -> Document:
    """A JSON body as a model, straight from bytes: no intermediate objects for what may be megabytes.

    Raises:
        ApiError: 415 for another content type, 422 with a problem per field.
    """
    check_content_type(request, JSON_TYPES)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise invalid_document(error) from error


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """The part of a route's `openapi_extra` that describes what `parse_json_as` reads.

    FastAPI must not know the body: it would read it before anybody has asked who sends it.
    """
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def invalid_document(error: ValidationError) -> ApiError:
    """422 with a problem per field, for documents other than specs."""
    return _invalid(validation_problems(error), error.error_count())


def _invalid(problems: list[FieldProblem], count: int) -> ApiError:
    more = f" (and {count - 1} more)" if count > 1 else ""
    return ApiError(422, "invalid-document", f"{problems[0].message}{more}", errors=problems)
