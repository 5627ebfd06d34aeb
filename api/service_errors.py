"""What services refuse, as problem documents: one table from their error tree to statuses and codes."""

import logging
from collections.abc import Sequence

from fastapi import FastAPI, Request
from starlette.responses import Response

from api.errors import FieldProblem, field_problem, problem_response, request_id_of
from services import errors as service

log = logging.getLogger("ghostwatt.api")

RETRY_AFTER_S = 2
"""Seconds after which a caller may try again when the database did not answer."""

ANSWERS: dict[type[service.ServiceError], tuple[int, str]] = {
    service.SpecError: (422, "invalid-spec"),
    service.NotFound: (404, "not-found"),
    service.IdempotencyConflict: (422, "idempotency-conflict"),
    service.QueryError: (422, "invalid-query"),
    service.NotComparable: (422, "not-comparable"),
    service.KeyLacksScope: (403, "forbidden"),
    service.KeyRefused: (401, "unauthorized"),
    service.LeaseLost: (409, "lease-lost"),
    service.DatabaseUnavailable: (503, "database-unavailable"),
}
"""Status and code by error; the nearest ancestor counts, and what has none is a 500."""


def install(app: FastAPI) -> None:
    """Adds the handlers to an app."""
    for kind in ANSWERS:
        app.add_exception_handler(kind, _service_error)


async def _service_error(request: Request, error: Exception) -> Response:
    status, code = next(ANSWERS[kind] for kind in type(error).__mro__ if kind in ANSWERS)
    detail, headers = str(error), {}
    if isinstance(error, service.DatabaseUnavailable):
        # The driver's words may name hosts and users; they are for the log.
        log.error("request %s: %s", request_id_of(request), error)
        told = error.told if isinstance(error, service.DatabaseHeld) else "the database did not answer"
        detail, headers = f"{told}; try again", {"Retry-After": str(RETRY_AFTER_S)}
    if status == 401:
        headers = {"WWW-Authenticate": 'Bearer realm="ghostwatt", charset="UTF-8"'}
    return problem_response(
        status,
        code,
        detail,
        request_id=request_id_of(request),
        errors=_field_problems(error),
        headers=headers,
    )


def _field_problems(error: Exception) -> Sequence[FieldProblem]:
    if not isinstance(error, service.SpecError):
        return ()
    return [
        field_problem(problem.field, problem.value, problem.limit, problem.message)
        for problem in error.problems
    ]
