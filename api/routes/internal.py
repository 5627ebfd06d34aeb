"""For the job of an experiment only: what it has to do, and what it has to tell."""

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from api.auth import (
    GroupDependency,
    JobDependency,
    authorize,
    authorize_job,
    known_job,
    needs,
    of_experiment,
    refusing_groups,
)
from api.bodies import JSON_TYPES, RawBody, json_body, parse_json_as, raw_body
from api.context import ContextDependency, context_of
from api.direct import DirectRoute, route_of
from api.openapi import problems
from api.responses import answer
from api.routes.experiments import ExperimentId
from phantom_core.protocol import (
    Assignment,
    EventBatch,
    GroupEnded,
    Metrics,
    NextAnswer,
    NextRequest,
    PowerSamples,
    ServiceAddresses,
)
from services import assignments, group_calls, heartbeats
from services.keys import Caller
from services.point_batches import read
from services.point_writes import Sent
from services.views import IngestResult

router = APIRouter(prefix="/internal/v1", tags=["internal"])

SHORT_POINTS_BYTES = 128 * 1024
"""Points that are no longer are read between other requests' turns. Their reader keeps Python's lock (the GIL) for the
fraction of a millisecond that it takes, whichever thread it is called from."""


@router.get(
    "/experiments/{experiment_id}/assignment",
    response_model=Assignment,
    openapi_extra=needs("ingest"),
    responses=problems(404, 422),
)
def assignment(job: JobDependency, experiment_id: ExperimentId, context: ContextDependency) -> Response:
    """The plan and the runs that are still to be made."""
    of_experiment(job, experiment_id)
    return answer(assignments.assignment(context.database, experiment_id, context.settings.data_roots))


@router.get("/services", response_model=ServiceAddresses, openapi_extra=needs("ingest"))
def services(_job: JobDependency, context: ContextDependency) -> Response:
    """Where the services of the database are that live now: a job may tell any of them what it has to tell."""
    return answer(ServiceAddresses(urls=heartbeats.service_urls(context.database)))


def events(request: Request, job: JobDependency, body: RawBody, context: ContextDependency) -> Response:
    """Takes a batch of events; each is stored once, however often it is sent."""
    # Not at the top: it brings NumPy, which nothing needs before the first job has something to tell.
    from services import ingest

    batch = parse_json_as(EventBatch, request, body)
    of_experiment(job, batch.experiment_id)
    result = ingest.ingest(context.database, batch)
    payloads = [event.payload for event in batch.events]
    context.metrics.ingested(
        result,
        metric_points=sum(len(each.points) for each in payloads if isinstance(each, Metrics)),
        power_points=sum(len(each.at) for each in payloads if isinstance(each, PowerSamples)),
    )
    return answer(result)


router.add_api_route(
    "/events",
    events,
    methods=["POST"],
    response_model=IngestResult,
    openapi_extra={**needs("ingest"), **json_body(EventBatch)},
    responses=problems(404, 409, 413, 415, 422),
)


def direct_events() -> DirectRoute:
    """The short way to `events`, which costs more by FastAPI's than storing what a live run tells.

    Points of a job that is known here, and nothing else, have one that is shorter still: read here, written with those
    of others. Whatever about them is unusual goes the way of all events, which says what it is.
    """

    async def answer_it(request: Request) -> Response:
        caller = await authorize(request)
        token, job = known_job(request)
        if job is not None and _has_short_json(request):
            result = await _points(request, job)
            if result is not None:
                return answer(result)
        job = await authorize_job(request, caller)
        context = context_of(request)
        context.known_jobs.note(token, job)
        body = await raw_body(request)
        return await run_in_threadpool(events, request, job, body, context)

    return DirectRoute(route_of(router, events), answer_it, lambda scope: not scope["query_string"])


def _has_short_json(request: Request) -> bool:
    length = request.headers.get("content-length", "")
    is_short = length.isascii() and length.isdigit() and int(length[:20]) <= SHORT_POINTS_BYTES
    return is_short and request.headers.get("content-type") in JSON_TYPES


async def _points(request: Request, job: Caller) -> IngestResult | None:
    """Stores a batch of points; None if it isn't one that can be stored so, and nothing was."""
    assert job.experiment_id is not None, "a job's token is an experiment's"
    body = await raw_body(request)
    # A length may be told with many zeros before it.
    batch = read(body, job.experiment_id) if len(body) <= SHORT_POINTS_BYTES else None
    if batch is None:
        return None
    context = context_of(request)
    accepted = await context.points.write(Sent(job.id, batch))
    if accepted is None:
        return None
    result = IngestResult(accepted=accepted, duplicates=len(batch.events) - accepted, rejected={})
    context.metrics.ingested(result, metric_points=batch.point_count)
    return result


@router.post(
    "/next",
    response_model=NextAnswer,
    openapi_extra={**needs("ingest"), **json_body(NextRequest)},
    responses=problems(413, 415, 422),
)
def next_experiment(
    request: Request, token: GroupDependency, body: RawBody, context: ContextDependency
) -> Response:
    """What a worker group that is done shall do: wait, make another experiment, or end."""
    asked = parse_json_as(NextRequest, request, body)
    with refusing_groups(request):
        return answer(group_calls.ask(context.database, asked, token, context.settings.keep_group_s))


@router.post(
    "/group-ended",
    status_code=204,
    openapi_extra={**needs("ingest"), **json_body(GroupEnded)},
    responses=problems(413, 415, 422),
)
def group_ended(request: Request, token: GroupDependency, body: RawBody, context: ContextDependency) -> None:
    """A worker group's ranks have ended, all of them, however that came."""
    told = parse_json_as(GroupEnded, request, body)
    with refusing_groups(request):
        group_calls.ended(context.database, told, token)
