"""Every answer that isn't a success is a problem document (RFC 9457), whatever went wrong and where.

    Exception
    └── ApiError                   a status, a stable code and a sentence; raised anywhere under `api`
        ├── BodyTooLarge  413      ├── Unauthorized 401
        ├── NotFound      404      └── Forbidden    403

`install` also turns into problems what FastAPI and Starlette raise themselves (404, 405, 422 ...), a spec's
own problems, and faults of the database. What nobody expected is a 500 that says the request's id and no more
(see `middleware.RequestContext`).
"""

import http
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from phantom_core.described import describe

MEDIA_TYPE = "application/problem+json"
MAX_FIELD_PROBLEMS = 50
"""Most field problems in one answer; more help nobody and a hostile body could ask for millions."""
MAX_SHOWN_CHARACTERS = 200
"""Longest value or message part that is repeated to the caller."""


class FieldProblem(BaseModel):
    """What is wrong with one field."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=describe)

    field: str
    """Where, with dots: `arms.1.ghosts`, `query.limit`; `body` for the document as a whole."""
    value: str | None = None
    """What was given, as text, shortened."""
    limit: str | None = None
    """What would have been accepted."""
    message: str
    """The reason and the way out."""


def _show_problem(schema: dict[str, Any], model: type[BaseModel]) -> None:
    describe(schema, model)
    schema["examples"] = [
        {
            "type": "urn:ghostwatt:problem:not-found",
            "title": "Not Found",
            "status": 404,
            "detail": "no experiment has the id exp_01",
            "code": "not-found",
            "request_id": "5f0c8f9e2d3b4a6c8e7f",
            "errors": [],
        }
    ]


class Problem(BaseModel):
    """A problem document (RFC 9457)."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=_show_problem)

    type: str
    """`urn:ghostwatt:problem:` and the code."""
    title: str
    """The status in words."""
    status: int
    """The HTTP status."""
    detail: str
    """What happened this time."""
    code: str
    """Stable name of the problem, for programs."""
    request_id: str | None = None
    """The request's id, as in the `X-Request-ID` header and the service's log."""
    errors: list[FieldProblem] = Field(default_factory=list)
    """What is wrong, field by field."""


class ApiError(Exception):
    """A refusal with everything that its answer needs."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: Sequence[FieldProblem] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = list(errors)
        self.headers = dict(headers or {})


class NotFound(ApiError):
    """404: nothing has that id."""

    def __init__(self, noun: str, value: str) -> None:
        super().__init__(404, "not-found", f"no {noun} has the id {shown(value)}")


class Unauthorized(ApiError):
    """401: a key is needed, or the one given isn't valid."""

    def __init__(self, detail: str, *, challenge: str = "Bearer") -> None:
        header = f'{challenge} realm="ghostwatt", charset="UTF-8"'
        super().__init__(401, "unauthorized", detail, headers={"WWW-Authenticate": header})


class Forbidden(ApiError):
    """403: known, but not allowed."""

    def __init__(self, detail: str, code: str = "forbidden") -> None:
        super().__init__(403, code, detail)


class BodyTooLarge(ApiError):
    """413: the body is longer than the route takes."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(
            413,
            "body-too-large",
            f"the body is longer than the {limit_bytes:,} bytes that this address takes",
        )


def shown(value: object, limit: int = MAX_SHOWN_CHARACTERS) -> str:
    """A value as short, printable, valid UTF-8 text: safe to repeat to whoever sent it."""
    text = value if isinstance(value, str) else repr(value)
    text = text[: limit + 1].encode("utf-8", "backslashreplace").decode()
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if len(text) <= limit else text[:limit] + "…"


def problem_response(
    status: int,
    code: str,
    detail: str,
    *,
    request_id: str | None = None,
    errors: Sequence[FieldProblem] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The one place where a problem document is written."""
    problem = Problem(
        type=f"urn:ghostwatt:problem:{code}",
        title=_title(status),
        status=status,
        detail=detail,
        code=code,
        request_id=request_id,
        errors=list(errors)[:MAX_FIELD_PROBLEMS],
    )
    return JSONResponse(problem.model_dump(), status, dict(headers or {}), media_type=MEDIA_TYPE)


def field_problem(field: str, value: object, limit: object, message: str) -> FieldProblem:
    """A problem in words that are short and printable, whatever was sent."""
    return FieldProblem(
        field=shown(field),
        value=None if value is None else _scalar(value),
        limit=None if limit is None else shown(limit),
        message=shown(message, 1_000),
    )


def validation_problems(error: ValidationError | RequestValidationError) -> list[FieldProblem]:
    """Pydantic's errors as field problems; inputs are repeated only if they are short scalars.

    A non-finite float is shown as text, since JSON can't carry it (FastAPI's own handler fails on it).
    """
    return [
        field_problem(
            ".".join(shown(str(part), 80) for part in item["loc"]) or "body",
            item.get("input"),
            _limit(item.get("ctx")),
            str(item["msg"]),
        )
        for item in error.errors()[:MAX_FIELD_PROBLEMS]
    ]


def install(app: FastAPI) -> None:
    """Adds the handlers to an app."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(RequestValidationError, _request_validation_error)


def request_id_of(request: Request) -> str | None:
    """The id that `middleware.RequestContext` gave the request."""
    value = request.scope.get("state", {}).get("request_id")
    return value if isinstance(value, str) else None


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return problem_response(
        error.status,
        error.code,
        error.detail,
        request_id=request_id_of(request),
        errors=error.errors,
        headers=error.headers,
    )


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    title = _title(error.status_code)
    detail = error.detail
    if error.status_code == 404 and detail == title:
        detail = f"nothing is served at {shown(request.url.path)}; /docs lists what is"
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "other methods")
        detail = f"{shown(request.method)} is not answered at {shown(request.url.path)}; {allowed} is"
    return problem_response(
        error.status_code,
        title.lower().replace(" ", "-"),
        shown(detail, 1_000),
        request_id=request_id_of(request),
        headers=error.headers,
    )


async def _request_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = validation_problems(error)
    return problem_response(
        422, "invalid-request", _summary(problems), request_id=request_id_of(request), errors=problems
    )


def _summary(problems: Sequence[FieldProblem]) -> str:
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{first.field}: {first.message}{more}"


def _title(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def _scalar(value: Any) -> str | None:
    if isinstance(value, bool) or value is None:
        return None if value is None else str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and abs(value) >= 10**50:
        return "a number of more than 50 digits"
    return shown(value) if isinstance(value, str | int | float) else None


def _limit(context: Mapping[str, Any] | None) -> str | None:
    """The bound that Pydantic names (`le`, `ge`, `max_length`, `expected` ...), as one short text."""
    if not context:
        return None
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    parts = [
        f"{signs.get(name, name)} {shown(value, 80)}" for name, value in context.items() if name != "error"
    ]
    return ", ".join(parts) or None
