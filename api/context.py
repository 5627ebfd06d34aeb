"""What routes reach for: settings, database and the background worker, made once per app."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from api.background import Background
from api.heavy import HeavyDocuments
from api.in_flight import InFlight
from api.metrics import ServiceMetrics
from api.rates import RateLimiter
from api.streams import Streams
from phantom_core.checks import Capacity
from services.admission_groups import AdmissionGroups
from services.database import Database
from services.known_jobs import KnownJobs
from services.point_groups import PointGroups
from services.settings import Settings


@dataclass(frozen=True)
class Context:
    """The app's parts."""

    settings: Settings
    """As the service was started."""
    database: Database
    """Open while the app is up."""
    background: Background | None
    """The dispatcher; None in a process that only serves."""
    keys_required: bool
    """Whether a request without a key is refused."""
    limiter: RateLimiter
    """How often one caller may ask."""
    streams: Streams
    """Watchers of experiments."""
    metrics: ServiceMetrics
    """Figures of this process."""
    admissions: AdmissionGroups
    """What writes submissions."""
    points: PointGroups
    """What writes batches of metric points."""
    known_jobs: KnownJobs
    """Jobs that sent something before; of the event loop alone."""
    in_flight: InFlight
    """Submissions that are under way."""
    heavy: HeavyDocuments
    """Long documents that are being read."""

    def capacity(self) -> Capacity | None:
        """What the cluster has; None while that isn't known, or where nothing dispatches."""
        return None if self.background is None else self.background.capacity()


def context_of(request: Request) -> Context:
    """The context of the app that answers a request."""
    context = request.app.state.context
    assert isinstance(context, Context)
    return context


async def _context(request: Request) -> Context:
    # A coroutine, since a plain function would cost every request the way to a thread and back.
    return context_of(request)


ContextDependency = Annotated[Context, Depends(_context)]
