"""Experiments are taken on: checked, written, answered once they are durable."""

import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import yaml
from anyio import from_thread
from fastapi import APIRouter, Header, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import Field
from starlette.types import Scope

from api.auth import CallerDependency, authorize, needs
from api.bodies import RawBody, is_short, parse_spec, plain_body
from api.context import Context, ContextDependency, context_of
from api.direct import DirectRoute, route_of
from api.errors import ApiError, Forbidden
from api.examples import SPEC
from api.openapi import problems
from api.responses import View, answer
from phantom_core.spec import ExperimentSpec, PhantomArm
from services import experiments
from services.admissions import Admission
from services.errors import NotFound, SpecError
from services.keys import Caller
from services.keys import Scope as KeyScope
from services.states import ExperimentState

router = APIRouter(prefix="/v1/experiments", tags=["experiments"])

IDEMPOTENCY_KEY = b"idempotency-key"
"""The header, as `submit`'s parameter of that name is sent."""
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}")

FEW_ARMS = 4
"""Arms that are planned between other requests' turns, some hundred microseconds each."""
FEW_RUNS = 32
"""Runs that are."""

SPEC_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "The experiment, as JSON or YAML.",
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/ExperimentSpec"}, "example": SPEC},
            "application/yaml": {
                "schema": {"$ref": "#/components/schemas/ExperimentSpec"},
                "example": yaml.safe_dump(SPEC, sort_keys=False),
            },
        },
    }
}
"""The body of routes that take a spec; it is parsed by `bodies.parse_spec`, which FastAPI can't see."""


class Accepted(View):
    """An experiment that the service has taken on."""

    id: str = Field(examples=["exp-01jd0000000000000000000000"])
    """Its id, also in the `Location` header."""
    state: ExperimentState
    """Its state now."""


def accepted(experiment_id: str, state: ExperimentState) -> Response:
    """202 with an experiment's id, place and state."""
    headers = {"Location": f"/v1/experiments/{experiment_id}"}
    return answer(Accepted(id=experiment_id, state=state), status=202, headers=headers)


def as_it_is(context: Context, experiment_id: str) -> Response:
    """202 with the state that an experiment has by now.

    Raises:
        NotFound: There is no such experiment.
    """
    state = ExperimentState(experiments.get(context.database, experiment_id).state)
    return accepted(experiment_id, state)


async def submit(
    request: Request,
    body: RawBody,
    context: ContextDependency,
    caller: CallerDependency,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=255,
            pattern=r"^[\x21-\x7e]*$",
            description="Text of your own: a repeat with the same key and body gives the same experiment.",
        ),
    ] = None,
) -> Response:
    """Takes an experiment on: it is checked now, and run when the cluster has room for it."""
    submitted_by = caller.id or None if caller else None
    with context.in_flight.alone(submitted_by or "", idempotency_key):
        # What costs little is done here: the way to a thread, and its wait for Python's lock (the GIL), cost more.
        quick = is_short(request, body)
        if quick:
            spec = parse_spec(request, body)
        else:
            spec = await run_in_threadpool(parse_spec, request, body)
        _may_push_past_others(spec, caller)
        prepare = partial(
            experiments.prepare,
            spec,
            capacity=context.capacity(),
            submitted_by=submitted_by,
            idempotency_key=idempotency_key,
        )
        try:
            if quick and is_small(spec):
                admission = prepare()
                is_written = await context.admissions.write(admission)
            else:
                admission, is_written = await run_in_threadpool(_write_large, context, prepare)
        except SpecError:
            if idempotency_key is None:
                raise
            # It may have been accepted before, by a cluster that had more.
            find = partial(
                experiments.made_with_key,
                context.database,
                spec,
                submitted_by=submitted_by,
                idempotency_key=idempotency_key,
            )
            earlier = await run_in_threadpool(find)
            if earlier is None:
                raise
            return await run_in_threadpool(_repeated, context, earlier)
        # Whoever holds the key may be undone, or forgotten, between the two looks; then it is free again.
        while not is_written:
            earlier = await run_in_threadpool(experiments.made_with_key_of, context.database, admission)
            if earlier is not None:
                return await run_in_threadpool(_repeated, context, earlier)
            is_written = await context.admissions.write(admission)
    return accepted(admission.id, ExperimentState.QUEUED)


def _may_push_past_others(spec: ExperimentSpec, caller: Caller | None) -> None:
    priority = spec.resources.priority
    if priority > 0 and (caller is None or KeyScope.ADMIN not in caller.scopes):
        raise Forbidden(
            f"resources.priority: {priority} would push past what others have queued, which needs a key with the scope "
            "admin; submit it with a priority of 0 or less, or ask whoever administers the service"
        )


def is_small(spec: ExperimentSpec) -> bool:
    """Whether a spec is planned in less time than others' requests would mind; controls must be searched for."""
    arms = len(spec.arms)
    has_controls = spec.controls and any(isinstance(arm, PhantomArm) for arm in spec.arms)
    return not has_controls and arms <= FEW_ARMS and arms * spec.measurement.rounds_planned <= FEW_RUNS


def _write_large(context: Context, prepare: Callable[[], Admission]) -> tuple[Admission, bool]:
    admission = prepare()
    # From this thread, which waits: threads are few, and so are the large ones that are kept in memory.
    return admission, from_thread.run(context.admissions.write, admission)


def _repeated(context: Context, experiment_id: str) -> Response:
    try:
        return as_it_is(context, experiment_id)
    except NotFound as error:
        detail = f"this Idempotency-Key made {experiment_id}, which has been deleted; use another key"
        raise ApiError(409, "already-deleted", detail) from error


router.add_api_route(
    "",
    submit,
    methods=["POST"],
    status_code=202,
    response_model=Accepted,
    openapi_extra={**needs("submit"), **SPEC_BODY},
    responses={
        202: {"headers": {"Location": {"description": "Where to watch it.", "schema": {"type": "string"}}}},
        **problems(409, 413, 415, 422),
    },
)


def direct_submission() -> DirectRoute:
    """The short way to `submit`, for all but those whose Idempotency-Key or query is to be refused."""

    async def answer_it(request: Request) -> Response:
        caller = await authorize(request)
        body = await plain_body(request)
        key = next(iter(_keys(request.scope)), None)
        return await submit(request, body, context_of(request), caller, key)

    return DirectRoute(route_of(router, submit), answer_it, _is_plain)


def _is_plain(scope: Scope) -> bool:
    if scope["query_string"]:
        return False
    keys = _keys(scope)
    return not keys or (len(keys) == 1 and _IDEMPOTENCY_KEY.fullmatch(keys[0]) is not None)


def _keys(scope: Scope) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == IDEMPOTENCY_KEY]
