"""Runs: one arm in one round, its metrics and its power."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from api.auth import needs
from api.context import ContextDependency
from api.openapi import problems
from api.responses import cacheable
from api.routes.experiments import Cursor, ExperimentId, Limit
from services import histories, runs
from services.histories import DEFAULT_POINTS, MOST_POINTS
from services.states import RunState
from services.views import MetricHistory, Page, PowerHistory, RunView

router = APIRouter(prefix="/v1", tags=["runs"])

RunId = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="Id of the run.",
        examples=["exp-01jd0000000000000000000000-r000-a01"],
    ),
]


class RunQuery(BaseModel):
    """Filters and paging of the list."""

    model_config = ConfigDict(extra="forbid")

    state: list[RunState] = Field(default_factory=list, max_length=6)
    """Any of these states; may be repeated."""
    arm: Annotated[str, Field(max_length=120, pattern=r"^[^\x00]*$")] | None = None
    """Name of an arm."""
    cursor: Cursor | None = None
    """`next_cursor` of the page before, with the same filters."""
    limit: Limit = 100
    """Most runs on the page."""


class HistoryQuery(BaseModel):
    """Which start of the run, and how much of it."""

    model_config = ConfigDict(extra="forbid")

    attempt: Annotated[int, Field(ge=1, le=1_000)] | None = None
    """Which start of the run; the last one by default."""
    max_points: Annotated[int, Field(ge=2, le=MOST_POINTS)] = DEFAULT_POINTS
    """Most points of a series; longer ones are thinned out."""


class MetricQuery(HistoryQuery):
    """Which metrics."""

    name: list[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]] = Field(
        default_factory=list, max_length=64
    )
    """Only these metrics; may be repeated."""


@router.get(
    "/experiments/{experiment_id}/runs",
    response_model=Page[RunView],
    openapi_extra=needs("read"),
    responses=problems(404, 422),
)
def list_runs(
    request: Request,
    experiment_id: ExperimentId,
    query: Annotated[RunQuery, Query()],
    context: ContextDependency,
) -> Response:
    """The runs of an experiment in the order in which they are made."""
    page = runs.list_runs(
        context.database,
        experiment_id,
        states=tuple(query.state),
        arm=query.arm,
        cursor=query.cursor,
        limit=query.limit,
    )
    return cacheable(request, page)


@router.get(
    "/runs/{run_id}", response_model=RunView, openapi_extra=needs("read"), responses=problems(404, 422)
)
def get(request: Request, run_id: RunId, context: ContextDependency) -> Response:
    """One run with its summary and all its attempts."""
    return cacheable(request, runs.get(context.database, run_id))


@router.get(
    "/runs/{run_id}/metrics",
    response_model=MetricHistory,
    openapi_extra=needs("read"),
    responses=problems(404, 422),
)
def metrics(
    request: Request, run_id: RunId, query: Annotated[MetricQuery, Query()], context: ContextDependency
) -> Response:
    """The metrics of one run, in order of step. With `max_points`, every n-th; first and last always."""
    history = histories.metric_history(
        context.database, run_id, names=query.name, attempt=query.attempt, max_points=query.max_points
    )
    return cacheable(request, history)


@router.get(
    "/runs/{run_id}/power",
    response_model=PowerHistory,
    openapi_extra=needs("read"),
    responses=problems(404, 422),
)
def power(
    request: Request, run_id: RunId, query: Annotated[HistoryQuery, Query()], context: ContextDependency
) -> Response:
    """Sampled power during one run, with its windows. Long series are merged into buckets."""
    # Not at the top: it brings NumPy, which takes as long to import as the whole service takes for many answers.
    from services.power_history import power_history

    history = power_history(context.database, run_id, attempt=query.attempt, max_points=query.max_points)
    return cacheable(request, history)
