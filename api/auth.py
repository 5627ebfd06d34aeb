"""Who may do what. Nothing is served that doesn't say which scope it needs: default deny.

Every route carries `openapi_extra=needs("read")` (or `submit`, `admin`, `ingest`, `nothing`), which
`authorize`, a dependency of the whole app, reads before anything else happens. A route without it answers
403 to everyone, and `create_app` refuses to build an app that has one.

- A service on loopback is open: whoever can run programs on the machine has `read`, `submit` and `admin`
  without a key, unless `GHOSTWATT_REQUIRE_KEYS=1`. Any other address demands a key of everyone.
- A key that is sent is always checked, so that a wrong one never passes unnoticed.
- `ingest` is never open: it takes the token that the service made for one experiment's job, and that
  token opens nothing else.
- A browser can't send a bearer token by itself, so safe methods also take Basic credentials (any name,
  the key as password). Unsafe methods don't: a browser would attach those to requests it didn't mean.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPBearer

from api.context import Context, context_of
from api.doors import SAFE_METHODS
from api.errors import Forbidden, Unauthorized
from api.headers import header
from api.queries import check_query
from services import group_calls, keys
from services.errors import KeyLacksScope, KeyRefused
from services.keys import Caller, Scope

NeededScope = Literal["nothing", "read", "submit", "admin", "ingest"]

bearer = HTTPBearer(
    auto_error=False, description="A key made by `ghostwatt keys create`; not needed on loopback by default."
)


OPEN = Caller(
    id="",
    name="anyone on this machine",
    scopes=frozenset({Scope.READ, Scope.SUBMIT, Scope.ADMIN}),
    experiment_id=None,
)
"""Whoever asks an open service."""


def needs(scope: NeededScope) -> dict[str, Any]:
    """A route's `openapi_extra` that says which scope it needs."""
    return {"x-ghostwatt-scope": scope}


def needed_scope(route: object) -> str | None:
    """The scope that a route says it needs; None if it says nothing."""
    extra = getattr(route, "openapi_extra", None) or {}
    value = extra.get("x-ghostwatt-scope")
    return value if isinstance(value, str) else None


async def authorize(request: Request, _bearer: Annotated[object, Depends(bearer)] = None) -> Caller | None:
    """Lets a request through or raises; only looking a key up leaves the event loop for a thread.

    Returns:
        Who asks; None where that isn't known yet: at addresses that need nothing, and for `ingest`, whose
        token `authorize_job` or `authorize_group` checks.

    Raises:
        Unauthorized: No key where one is needed, or an invalid one.
        Forbidden: The key lacks the scope, or the route names none.
        TooManyRequests: The caller has asked too often. Jobs are not limited: what they say must not be lost.
    """
    scope = needed_scope(request.scope.get("route"))
    if scope is None:
        raise Forbidden("this address says of nobody that they may use it")
    context = context_of(request)
    host = request.client.host if request.client else ""
    if scope == "nothing":
        # A bucket of its own: a loop gone wild must not hide that all is well.
        context.limiter.take(f"open {host}")
        return None
    token = _token(request)
    if scope == Scope.INGEST:
        if token is None:
            raise Unauthorized("this address needs the token of an experiment's job")
        return None
    if token is None:
        context.limiter.take(host)
        if not context.keys_required:
            return OPEN
        raise Unauthorized(
            "this address needs a key: Authorization: Bearer KEY", challenge=_challenge(request)
        )
    with _counting_refusals(context, host):
        caller = await run_in_threadpool(
            _verified, request, partial(keys.verify, context.database, token, Scope(scope))
        )
    context.limiter.take(caller.id)
    return caller


async def known_query(request: Request, _caller: Annotated[object, Depends(authorize)]) -> None:
    """Refuses query parameters that an address doesn't have, once it is known who asks: of jobs that is known later.

    Pages are left alone: links to them carry what others have put there.

    Raises:
        ApiError: See `check_query`.
    """
    route = request.scope.get("route")
    if needed_scope(route) != Scope.INGEST and getattr(route, "include_in_schema", True):
        check_query(request)


async def authorize_job(request: Request, _caller: Annotated[object, Depends(authorize)]) -> Caller:
    """Lets a request with the token of any experiment's job through, before its body is read.

    A stranger's thirty megabytes must not be read, let alone understood. Whose events they are is in the body:
    `of_experiment` looks at that.

    Raises:
        Unauthorized: The token is not valid.
        Forbidden: It is no job's.
    """
    token, context = _token(request), context_of(request)
    assert token is not None, "authorize has let no request without a token through"
    with _counting_refusals(context, request.client.host if request.client else ""):
        verify = partial(keys.verify_job, context.database, token)
        caller = await run_in_threadpool(_verified, request, verify)
    check_query(request)
    return caller


def known_job(request: Request) -> tuple[str, Caller | None]:
    """A job's token that `authorize` has let through, and whose it was when it was last good, if this process knows.

    Whoever goes by that must look whether the key is good still, where it counts: in the transaction that it writes in.
    """
    token = _token(request)
    assert token is not None, "authorize has let no request without a token through"
    return token, context_of(request).known_jobs.find(token)


JobDependency = Annotated[Caller, Depends(authorize_job)]


def of_experiment(caller: Caller, experiment_id: str) -> None:
    """Lets a job speak for its own experiment.

    Raises:
        Forbidden: It is another's.
    """
    if caller.experiment_id != experiment_id:
        raise Forbidden(f"the API key {caller.id} belongs to the job of another experiment")


@contextmanager
def _counting_refusals(context: Context, host: str) -> Iterator[None]:
    """Keys that are wrong are counted by where they come from: each costs a look at the database."""
    origin = f"refused {host}"
    context.limiter.check(origin)
    try:
        yield
    except Unauthorized:
        context.limiter.take(origin)
        raise


CallerDependency = Annotated[Caller | None, Depends(authorize)]


async def authorize_group(request: Request, _caller: Annotated[object, Depends(authorize)]) -> str:
    """Lets a request with the token of any worker group through, before its body is read; gives the token.

    Which group it speaks of is in the body: `services.group_calls` looks whether that is the token's.

    Raises:
        Unauthorized: The token is no group's.
    """
    token, context = _token(request), context_of(request)
    assert token is not None, "authorize has let no request without a token through"
    with _counting_refusals(context, request.client.host if request.client else ""), refusing_groups(request):
        await run_in_threadpool(group_calls.verify, context.database, token)
    check_query(request)
    return token


GroupDependency = Annotated[str, Depends(authorize_group)]


@contextmanager
def refusing_groups(request: Request) -> Iterator[None]:
    """A token that is not a worker group's, or not that of the group that is spoken of, is refused.

    Raises:
        Unauthorized: The token is not valid.
    """
    try:
        yield
    except KeyRefused as error:
        raise Unauthorized(str(error), challenge=_challenge(request)) from error


def unguarded(routers: Iterable[APIRouter]) -> list[str]:
    """Paths of the routes that name no scope."""
    routes = (route for router in routers for route in router.routes)
    return [getattr(route, "path", repr(route)) for route in routes if needed_scope(route) is None]


def _verified(request: Request, verify: Callable[[], Caller]) -> Caller:
    try:
        return verify()
    except KeyLacksScope as error:
        raise Forbidden(str(error)) from error
    except KeyRefused as error:
        raise Unauthorized(str(error), challenge=_challenge(request)) from error


def _challenge(request: Request) -> str:
    """Basic makes a browser ask its user for the key; programs are told what they should send."""
    return "Basic" if "text/html" in request.headers.get("accept", "") else "Bearer"


def _token(request: Request) -> str | None:
    sent = header(request.scope, b"authorization")
    if sent is None:
        return None
    kind, _, value = sent.partition(" ")
    value = value.strip()
    if kind.lower() == "bearer" and value:
        return value
    if kind.lower() == "basic" and request.method in SAFE_METHODS:
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError) as error:
            raise Unauthorized("the Basic credentials can't be read", challenge="Basic") from error
    raise Unauthorized("Authorization takes `Bearer KEY`")
