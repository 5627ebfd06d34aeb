"""What happens to an experiment, as it happens: server-sent events."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field

from api.auth import CallerDependency, needs
from api.context import ContextDependency
from api.event_response import EventResponse
from api.examples import EVENT_STREAM
from api.methods import HEAD
from api.openapi import problems
from api.routes.experiments import ExperimentId
from services import watching

router = APIRouter(tags=["experiments"])

EventId = Annotated[str, Field(pattern=r"^[0-9]{1,18}$", examples=["4711"])]


class EventQuery(BaseModel):
    """Where to begin."""

    model_config = ConfigDict(extra="forbid")

    after: EventId | None = None
    """For programs that can't send `Last-Event-ID`: the same. The header counts where both are sent."""


@router.get(
    "/v1/experiments/{experiment_id}/events",
    response_class=Response,
    openapi_extra=needs("read"),
    responses={
        200: {
            "description": "Events until the one that ends the experiment; a comment now and then keeps it open.",
            "content": {
                "text/event-stream": {
                    "schema": {"type": "string"},
                    "example": EVENT_STREAM,
                }
            },
        },
        204: {
            "description": "The experiment has ended and nothing follows `Last-Event-ID`: don't come back."
        },
        **problems(404, 422, 503),
    },
)
async def events(
    request: Request,
    experiment_id: ExperimentId,
    query: Annotated[EventQuery, Query()],
    context: ContextDependency,
    caller: CallerDependency,
    last_event_id: Annotated[
        EventId | None,
        Header(description="Id of the last event that was seen: the stream goes on after it, without loss."),
    ] = None,
) -> Response:
    """States, progress, ended runs and rounds of an experiment, from its start, each once and in order.

    Every event has an `id`; sent back as `Last-Event-ID`, by browsers without being asked, it makes the stream go on
    where it broke off, through any process of the service. `data` is an `Occurrence`. The stream ends with the event
    whose `is_last` is true, and now and then before: whoever comes back then misses nothing.
    """
    if request.scope["state"].get(HEAD):
        await run_in_threadpool(watching.position, context.database, experiment_id)
        return Response(media_type="text/event-stream")
    host = request.client.host if request.client else ""
    who = caller.id or host if caller else host
    stream = await context.streams.open(who, experiment_id, int(last_event_id or query.after or 0))
    return Response(status_code=204) if stream is None else EventResponse(stream)
