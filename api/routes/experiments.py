"""Experiments: find, look at, cancel, delete; `submissions` takes them on."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from api.auth import needs
from api.context import ContextDependency
from api.errors import ApiError, FieldProblem, shown
from api.openapi import problems
from api.responses import cacheable
from api.routes.submissions import Accepted, as_it_is
from phantom_core.spec import TagKey, TagValue
from services import experiments
from services.catalogue import ExperimentFilter
from services.cursors import MAX_LIMIT
from services.instants import Instant
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
    submitted_after: Instant | None = None
    """Accepted at or after this time."""
    submitted_before: Instant | None = None
    """Accepted before this time."""
    cursor: Cursor | None = None
    """`next_cursor` of the page before, with the same filters."""
    limit: Limit = 50
    """Most experiments on the page."""


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
            return as_it_is(context, experiment_id)
        detail = f"{experiment_id} has ended already: it is {state}"
        raise ApiError(409, "already-ended", detail)
    return as_it_is(context, experiment_id)


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
    return as_it_is(context, experiment_id)


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
