"""The queue: whether experiments may leave it, and what waits in it."""

import logging
from datetime import datetime

from fastapi import APIRouter, Request, Response
from pydantic import Field

from api.auth import CallerDependency, needs
from api.bodies import Pause, RawBody, json_body, parse_json_as
from api.context import Context, ContextDependency
from api.openapi import problems
from api.responses import View, answer, cacheable
from services import census, switches
from services.states import ExperimentState

log = logging.getLogger("ghostwatt.api")

router = APIRouter(prefix="/v1/queue", tags=["queue"])


class PriorityView(View):
    """Experiments that wait at one priority."""

    priority: int = Field(examples=[0])
    """`resources.priority` of their specs; higher goes first."""
    queued: int = Field(examples=[2])
    """How many."""


class QueueView(View):
    """The queue as it is."""

    paused: bool
    """Whether no queued experiment may begin; those that have begun go on."""
    reason: str | None
    """Why it is paused, in the words of whoever did; None if it isn't."""
    paused_at: datetime | None
    """Since when."""
    queued: int = Field(examples=[3])
    """Experiments that wait."""
    by_priority: list[PriorityView] = Field(
        examples=[[{"priority": 5, "queued": 1}, {"priority": 0, "queued": 2}]]
    )
    """The same by priority, highest first."""
    oldest_queued_s: float | None = Field(examples=[12.5])
    """Seconds that the longest wait has lasted; None if nothing waits."""


@router.get("", response_model=QueueView, openapi_extra=needs("read"))
def show(request: Request, context: ContextDependency) -> Response:
    """Whether it is paused, and how much waits."""
    return cacheable(request, _as_it_is(context))


@router.post(
    "/pause",
    response_model=QueueView,
    openapi_extra={**needs("admin"), **json_body(Pause)},
    responses=problems(413, 415, 422),
)
def pause(request: Request, body: RawBody, context: ContextDependency, caller: CallerDependency) -> Response:
    """Lets no queued experiment begin until it is resumed; those that have begun go on. May be repeated."""
    asked = parse_json_as(Pause, request, body)
    switches.pause_queue(context.database, asked.reason)
    log.info("the queue was paused by %s", caller.id or "anyone on this machine" if caller else "nobody")
    return answer(_as_it_is(context))


@router.post("/resume", response_model=QueueView, openapi_extra=needs("admin"))
def resume(context: ContextDependency, caller: CallerDependency) -> Response:
    """Ends the pause; without one it does nothing."""
    switches.resume_queue(context.database)
    log.info("the queue was resumed by %s", caller.id or "anyone on this machine" if caller else "nobody")
    return answer(_as_it_is(context))


def _as_it_is(context: Context) -> QueueView:
    found, standing = census.take(context.database), switches.pause(context.database)
    return QueueView(
        paused=standing is not None,
        reason=None if standing is None else standing.reason,
        paused_at=None if standing is None else standing.since,
        queued=found.experiments[ExperimentState.QUEUED],
        by_priority=[
            PriorityView(priority=priority, queued=queued)
            for priority, queued in found.queued_by_priority.items()
        ],
        oldest_queued_s=found.oldest_queued_s,
    )
