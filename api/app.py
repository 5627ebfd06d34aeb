"""The web application, put together: parts opened and closed in order, doors in front, one router per noun.

Importing this loads neither torch nor Ray; making an app opens nothing; starting it (the lifespan) opens the
database, migrates it, and starts the background worker.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

from anyio import to_thread
from fastapi import Depends, FastAPI
from starlette.middleware import Middleware

import phantom_core
from api import errors, openapi, pages, service_errors
from api.auth import authorize, known_query, unguarded
from api.background import Background
from api.context import Context
from api.direct import Direct
from api.doors import Doors, is_loopback, parse_origin
from api.heavy import HeavyDocuments
from api.in_flight import InFlight
from api.limits import RequestLimits
from api.methods import Methods
from api.metrics import ServiceMetrics
from api.middleware import RequestContext
from api.rates import RateLimiter
from api.routes import ROUTERS
from api.routes.internal import direct_events
from api.routes.submissions import direct_submission
from api.streams import Limits, Streams
from services import keys
from services.admission_groups import AdmissionGroups
from services.database import Database
from services.known_jobs import KnownJobs
from services.point_groups import PointGroups
from services.settings import Settings


class RefusedToStart(Exception):
    """The service would be unsafe as it is set up; the message says what to change."""


def create_app(
    settings: Settings,
    *,
    background: Background | None = None,
    limiter: RateLimiter | None = None,
    limits: Limits | None = None,
) -> FastAPI:
    """The service's web application.

    Args:
        settings: As read from the environment.
        background: What dispatches experiments while the app is up; None serves only.
        limiter: How often one caller may ask; None takes the usual rate.
        limits: What event streams may cost; None takes the usual limits.

    Returns:
        An app whose lifespan opens the database, migrates it and starts `background`, and ends them in
        reverse; it raises `RefusedToStart` for an address that others can reach while no admin key exists.
    """
    metrics = ServiceMetrics()
    app = FastAPI(
        title="Ghostwatt",
        version=phantom_core.__version__,
        summary=openapi.SUMMARY,
        description=openapi.DESCRIPTION,
        lifespan=partial(
            _lifespan,
            settings=settings,
            background=background,
            limiter=limiter or RateLimiter(),
            limits=limits or Limits(),
            metrics=metrics,
        ),
        dependencies=[Depends(authorize), Depends(known_query)],
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        # Its own log and figures are scrubbed and bounded; FastAPI's would send messages of errors as they are, to
        # wherever the environment says, and look there in every request.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        middleware=[
            Middleware(RequestContext, metrics=metrics),
            Middleware(Doors, hosts=_answered_names(settings), secure=_secure_authorities(settings)),
            Middleware(RequestLimits),
            Middleware(Methods, routers=ROUTERS),
        ],
    )
    # The innermost, so that it is after all others; it takes the handlers that are installed below.
    direct = [direct_submission(), direct_events()]
    app.user_middleware.append(Middleware(Direct, routes=direct, handlers=app.exception_handlers))
    errors.install(app)
    service_errors.install(app)
    without_scope = unguarded(ROUTERS)
    assert not without_scope, f"routes that say of nobody that they may use them: {without_scope}"
    for router in ROUTERS:
        app.include_router(router)
    pages.install(app)
    openapi.install(app, ROUTERS)
    return app


@asynccontextmanager
async def _lifespan(
    app: FastAPI,
    *,
    settings: Settings,
    background: Background | None,
    limiter: RateLimiter,
    limits: Limits,
    metrics: ServiceMetrics,
) -> AsyncIterator[None]:
    with Database(settings.database_url) as database:
        await to_thread.run_sync(prepare, database, settings)
        keys_required = settings.require_keys or not is_loopback(settings.host)
        try:
            async with (
                Streams(database, limits) as streams,
                _closing_in_a_thread(AdmissionGroups(database)) as admissions,
                _closing_in_a_thread(PointGroups(database)) as points,
            ):
                metrics.watch(database, lambda: streams.count)
                app.state.context = Context(
                    settings=settings,
                    database=database,
                    background=background,
                    keys_required=keys_required,
                    limiter=limiter,
                    streams=streams,
                    metrics=metrics,
                    admissions=admissions,
                    points=points,
                    known_jobs=KnownJobs(),
                    in_flight=InFlight(),
                    heavy=HeavyDocuments(),
                )
                if background is not None:
                    await to_thread.run_sync(background.start)
                yield
        finally:
            # Also after a start that failed half-way: what it had begun must not outlive the service.
            if background is not None:
                await to_thread.run_sync(background.stop)


_Groups = TypeVar("_Groups", AdmissionGroups, PointGroups)


@asynccontextmanager
async def _closing_in_a_thread(groups: _Groups) -> AsyncIterator[_Groups]:
    try:
        yield groups
    finally:
        # What still waits is answered through the event loop, which must not wait for it.
        await to_thread.run_sync(groups.close)


def prepare(database: Database, settings: Settings) -> None:
    """Brings the database to this version's tables, and makes sure that it is safe to serve.

    Raises:
        RefusedToStart: Another address than loopback without an admin key.
        ServiceError: The database can't be used.
    """
    database.migrate()
    if not is_loopback(settings.host):
        _refuse_without_admin_key(database, settings.host)


def _refuse_without_admin_key(database: Database, host: str) -> None:
    moment = datetime.now(UTC)
    working = (
        key
        for key in keys.list_keys(database)
        if key.revoked_at is None and (key.expires_at is None or key.expires_at > moment)
    )
    if not any(keys.Scope.ADMIN in key.scopes for key in working):
        raise RefusedToStart(
            f"{host} can be reached from other machines, and no admin key exists yet; make one with "
            "`ghostwatt keys create --scope admin --name NAME`, or listen on 127.0.0.1"
        )


def _answered_names(settings: Settings) -> frozenset[str] | None:
    """Names for the Host check; None (any) only where every caller needs a key anyway."""
    # Jobs use the service's URL, whatever else people call it.
    own = {settings.host, urlsplit(settings.service_url).hostname or settings.host}
    if settings.allowed_hosts:
        allowed = {
            urlsplit(each).hostname or each if "://" in each else each for each in settings.allowed_hosts
        }
        return frozenset({*own, *allowed})
    return frozenset(own) if is_loopback(settings.host) else None


def _secure_authorities(settings: Settings) -> frozenset[tuple[str, int]]:
    """Names and ports at which people reach the service by TLS, through a proxy: it speaks none itself."""
    origins = map(parse_origin, [settings.service_url, *settings.allowed_hosts])
    return frozenset((origin[1], origin[2]) for origin in origins if origin and origin[0] == "https")
