"""Experiments: submit, find, look at, cancel, delete."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from api.auth import CallerDependency, authorize, needs
from api.bodies import RawBody, parse_spec, raw_body
from api.context import Context, ContextDependency, context_of
from api.errors import ApiError, FieldProblem, shown
from api.examples import SPEC
from api.openapi import problems
from api.responses import View, answer, cacheable
from phantom_core.spec import TagKey, TagValue
from services import experiments
from services.catalogue import ExperimentFilter
from services.cursors import MAX_LIMIT
from services.errors import NotFound
from services.states import ExperimentState
from services.views import ExperimentDetail, ExperimentView, Page

router = APIRouter(prefix="/v1/experiments", tags=["experiments"])

ExperimentId = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="Id of the experiment.",
        examples=["exp-01jd0000000000000000000000"],
    ),
]
Cursor = Annotated[str, Field(max_length=1_000, pattern=r"^[A-Za-z0-9_=-]*$")]
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT)]

IDEMPOTENCY_KEY = "idempotency-key"
"""The header, as `submit`'s parameter of that name is sent."""

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


class ExperimentQuery(BaseModel):
    """Filters of the list; all that are given must hold, and unknown ones are refused."""

    model_config = ConfigDict(extra="forbid")

    state: list[ExperimentState] = Field(default_factory=list, max_length=8)
    """Any of these states; may be repeated."""
    name: Annotated[str, Field(max_length=80, pattern=r"^[^\x00]*$")] | None = None
    """Part of the name, in any case."""
    tag: list[Annotated[str, Field(max_length=264)]] = Field(
        default_factory=list, max_length=32, examples=[["team=vision"]]
    )
    """`key=value`; may be repeated, and all must hold."""
    strategy: Annotated[str, Field(max_length=32, pattern=r"^[a-z_]*$")] | None = None
    """Some arm has this strategy."""
    submitted_after: AwareDatetime | None = None
    """Accepted at or after this time."""
    submitted_before: AwareDatetime | None = None
    """Accepted before this time."""
    cursor: Cursor | None = None
    """`next_cursor` of the page before, with the same filters."""
    limit: Limit = 50
    """Most experiments on the page."""


def submit(
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
    spec = parse_spec(request, body)
    submitted_by = caller.id or None if caller else None
    with context.in_flight.alone(submitted_by or "", idempotency_key):
        experiment_id = experiments.submit(
            context.database,
            spec,
            capacity=context.capacity(),
            submitted_by=submitted_by,
            idempotency_key=idempotency_key,
        )
    if idempotency_key is None:
        return _accepted(experiment_id, ExperimentState.QUEUED)
    try:
        return _as_it_is(context, experiment_id)
    except NotFound as error:
        detail = f"this Idempotency-Key made {experiment_id}, which has been deleted; use another key"
        raise ApiError(409, "already-deleted", detail) from error


class PlainSubmission(APIRoute):
    """The route of `submit`: a request whose only parameter is its body needs no search for parameters.

    FastAPI looks for each anew in every request, which costs as much as all else that this route does before the
    database is asked.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What answers a request."""
        whole = super().get_route_handler()

        async def handle(request: Request) -> Response:
            if IDEMPOTENCY_KEY in request.headers:
                return await whole(request)
            caller = await authorize(request)
            body = await raw_body(request)
            return await run_in_threadpool(submit, request, body, context_of(request), caller)

        return handle


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
    route_class_override=PlainSubmission,
)


@router.get("", response_model=Page[ExperimentView], openapi_extra=needs("read"), responses=problems(422))
def list_experiments(
    request: Request, query: Annotated[ExperimentQuery, Query()], context: ContextDependency
) -> Response:
    """Experiments, newest first."""
    filters = ExperimentFilter(
        states=tuple(query.state),
        name_contains=query.name,
        tags=parse_tags(query.tag),
        strategy=query.strategy,
        submitted_after=query.submitted_after,
        submitted_before=query.submitted_before,
    )
    page = experiments.list_experiments(
        context.database, filters=filters, cursor=query.cursor, limit=query.limit
    )
    return cacheable(request, page)


@router.get(
    "/{experiment_id}",
    response_model=ExperimentDetail,
    openapi_extra=needs("read"),
    responses=problems(404, 422),
)
def get(request: Request, experiment_id: ExperimentId, context: ContextDependency) -> Response:
    """One experiment with its arms, spec, devices and timings."""
    return cacheable(request, experiments.get(context.database, experiment_id))


@router.post(
    "/{experiment_id}/cancel",
    status_code=202,
    response_model=Accepted,
    openapi_extra=needs("submit"),
    responses=problems(404, 409, 422),
)
def cancel(experiment_id: ExperimentId, context: ContextDependency) -> Response:
    """Asks for an experiment to end. A queued one ends at once; a running one once its job has stopped."""
    if not experiments.request_cancel(context.database, experiment_id):
        state = experiments.get(context.database, experiment_id).state
        if state == ExperimentState.CANCELLED:
            return _as_it_is(context, experiment_id)
        detail = f"{experiment_id} has ended already: it is {state}"
        raise ApiError(409, "already-ended", detail)
    return _as_it_is(context, experiment_id)


@router.delete(
    "/{experiment_id}",
    openapi_extra=needs("submit"),
    response_class=Response,
    status_code=204,
    responses={
        202: {"description": "It is being cancelled and goes once its job has stopped.", "model": Accepted},
        204: {"description": "It is gone."},
        **problems(404, 422),
    },
)
def delete(experiment_id: ExperimentId, context: ContextDependency) -> Response:
    """Deletes an experiment with all that was measured; one that has not ended is cancelled first."""
    if experiments.request_delete(context.database, experiment_id):
        return Response(status_code=204)
    return _as_it_is(context, experiment_id)


def _as_it_is(context: Context, experiment_id: str) -> Response:
    return _accepted(experiment_id, ExperimentState(experiments.get(context.database, experiment_id).state))


def _accepted(experiment_id: str, state: ExperimentState) -> Response:
    headers = {"Location": f"/v1/experiments/{experiment_id}"}
    return answer(Accepted(id=experiment_id, state=state), status=202, headers=headers)


_TAGS: TypeAdapter[dict[TagKey, TagValue]] = TypeAdapter(dict[TagKey, TagValue])


def parse_tags(given: list[str]) -> dict[str, str]:
    """Tags that are asked for.

    Raises:
        ApiError: 422 for one that isn't `key=value`.
    """
    pairs = [tag.partition("=") for tag in given]
    try:
        # A tag without a sign has no value to look for, and an empty one would silently find nothing.
        return _TAGS.validate_python({name: value if sign else None for name, sign, value in pairs})
    except ValidationError as error:
        message = f"{shown(', '.join(given))}: a tag is asked for as key=value, in a tag's own characters"
        problem = FieldProblem(field="query.tag", value=shown(", ".join(given)), message=message)
        raise ApiError(422, "invalid-request", message, errors=[problem]) from error
