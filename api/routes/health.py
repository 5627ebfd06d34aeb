"""Is the process up, and can it do its work: for load balancers, for `ghostwatt demo`, for a person."""

from typing import Literal

from fastapi import APIRouter, Response
from pydantic import Field

from api.auth import needs
from api.context import Context, ContextDependency
from api.responses import View, answer
from services import heartbeats
from services.database import Database
from services.errors import DatabaseError, DatabaseHeld
from services.scrubbing import scrubbed

HEARTBEAT_LIMIT_S = 30.0
"""A dispatcher that has been silent for longer counts as stuck."""

WRITTEN_LATELY_S = 15.0
"""Where no dispatcher has written for so long, as each does every 5 s, it is tried whether anything can be written."""

router = APIRouter(tags=["health"])

CheckName = Literal["database", "migrations", "dispatcher", "cluster"]


class Alive(View):
    """The process answers."""

    status: Literal["ok"] = "ok"
    """Always `ok`: whoever reads it has the answer."""


class Check(View):
    """One thing that the service needs."""

    name: CheckName
    """What was looked at."""
    ok: bool
    """Whether it is as it should be."""
    needed: bool
    """Whether the service is useless without it; the cluster isn't: submitting and reading work without."""
    detail: str
    """What was found, in one sentence."""


class Readiness(View):
    """Whether the service can do its work."""

    status: Literal["ready", "degraded", "unready"]
    """`ready`; `degraded`: it accepts and answers, but no experiment can run now; `unready`: neither."""
    checks: list[Check] = Field(
        examples=[[{"name": "database", "ok": True, "needed": True, "detail": "it answers"}]]
    )
    """What was looked at."""


@router.get("/healthz", openapi_extra=needs("nothing"), response_model=Alive)
async def healthz() -> Response:
    """Answers as long as the process does; looks at nothing else."""
    return answer(Alive())


@router.get(
    "/readyz",
    openapi_extra=needs("nothing"),
    response_model=Readiness,
    responses={503: {"model": Readiness, "description": "unready"}},
)
def readyz(context: ContextDependency) -> Response:
    """Looks at database, migrations, dispatcher and cluster: 200 if ready or degraded, else 503."""
    checks = [*_database_checks(context), *_background_checks(context)]
    broken = [check for check in checks if not check.ok]
    status: Literal["ready", "degraded", "unready"] = "ready"
    if broken:
        status = "unready" if any(check.needed for check in broken) else "degraded"
    return answer(Readiness(status=status, checks=checks), status=503 if status == "unready" else 200)


def _database_checks(context: Context) -> list[Check]:
    try:
        context.database.check()
        at_head = context.database.is_at_head()
        is_written = bool(heartbeats.alive(context.database, WRITTEN_LATELY_S))
    except DatabaseError:
        # What the driver says may hold a host or a user name; this address is open to everyone.
        detail = "it does not answer; the service's log says why"
        return [Check(name="database", ok=False, needed=True, detail=detail)]
    held = None if is_written else _why_held(context.database)
    return [
        Check(name="database", ok=held is None, needed=True, detail=held or "it answers"),
        Check(
            name="migrations",
            ok=at_head,
            needed=True,
            detail="at head" if at_head else "not at head; run `python -m api migrate`",
        ),
    ]


def _why_held(database: Database) -> str | None:
    """Why nothing can be written; None if something can."""
    try:
        database.check_held()
    except DatabaseHeld as error:
        return error.told
    except DatabaseError:
        return "it answers, but something holds its write lock (docs/faults.md)"
    return None


def _background_checks(context: Context) -> list[Check]:
    background = context.background
    if background is None:
        return [Check(name="dispatcher", ok=False, needed=False, detail="this process only serves")]
    age_s = background.heartbeat_age_s()
    if age_s is None:
        dispatcher = Check(name="dispatcher", ok=False, needed=True, detail="it has not begun yet")
    else:
        dispatcher = Check(
            name="dispatcher",
            ok=age_s <= HEARTBEAT_LIMIT_S,
            needed=True,
            detail=f"its last sign of life was {age_s:.1f} s ago ({HEARTBEAT_LIMIT_S:g} s are allowed)",
        )
        trouble = background.trouble()
        if dispatcher.ok and trouble is not None:
            dispatcher = Check(name="dispatcher", ok=False, needed=False, detail=scrubbed(trouble))
    problem = background.cluster_problem()
    # What a cluster answers may repeat what it was sent; this address is open to everyone.
    told = "experiments can run" if problem is None else scrubbed(problem)
    cluster = Check(name="cluster", ok=problem is None, needed=False, detail=told)
    return [dispatcher, cluster]
