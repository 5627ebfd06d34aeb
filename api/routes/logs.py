"""What an experiment's job printed, in pieces: by byte range, or its end. Never the whole of it at once."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from api.auth import needs
from api.context import Context, ContextDependency
from api.openapi import problems
from api.ranges import RangeNotSatisfiable, parse_range
from api.routes.experiments import ExperimentId
from api.routes.runs import RunId
from services import job_logs
from services.job_logs import LONGEST_ANSWER, LogPiece

router = APIRouter(prefix="/v1", tags=["runs"])

USUAL_BYTES = 64 * 1024
"""What is answered to whoever asks for no range."""


class LogQuery(BaseModel):
    """How much of the end."""

    model_config = ConfigDict(extra="forbid")

    tail_bytes: Annotated[int, Field(ge=1, le=LONGEST_ANSWER)] = USUAL_BYTES
    """So many bytes from the end, where no `Range` is asked for."""


class ExperimentLogQuery(LogQuery):
    """Of which start, and how much of the end."""

    attempt: Annotated[int, Field(ge=1, le=1_000)] | None = None
    """Which start of the experiment's job; the last one that printed anything by default."""


RangeHeader = Annotated[
    str | None,
    Header(alias="Range", max_length=100, description="One range of bytes, such as `bytes=0-65535`."),
]
_LOG_HEADERS = {
    "X-Log-Kept-From": {
        "description": "Position of the first byte that is kept.",
        "schema": {"type": "integer"},
    },
    "X-Log-End": {"description": "Position behind the last byte so far.", "schema": {"type": "integer"}},
    "X-Log-Complete": {"description": "Whether nothing more will come.", "schema": {"type": "boolean"}},
}
_LOG_CONTENT = {"text/plain": {"schema": {"type": "string"}, "example": "round 1: tensor begins\n"}}
RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The log's end.", "content": _LOG_CONTENT, "headers": _LOG_HEADERS},
    206: {"description": "The range, or its beginning.", "content": _LOG_CONTENT, "headers": _LOG_HEADERS},
    **problems(404, 416, 422),
}


@router.get(
    "/experiments/{experiment_id}/log",
    openapi_extra=needs("read"),
    response_class=Response,
    responses=RESPONSES,
)
def experiment_log(
    experiment_id: ExperimentId,
    query: Annotated[ExperimentLogQuery, Query()],
    context: ContextDependency,
    wanted: RangeHeader = None,
) -> Response:
    """What the experiment's job printed: the end of it, or the bytes of one `Range`, at most 1 MiB at a time.

    Copied while the job runs, a few seconds behind, and kept when the cluster is gone: the last 8 MiB of each start,
    without what looks like a secret. Positions count from the first byte ever printed.
    """
    return _answer(context, experiment_id, query.attempt, wanted, query.tail_bytes)


@router.get("/runs/{run_id}/log", openapi_extra=needs("read"), response_class=Response, responses=RESPONSES)
def run_log(
    run_id: RunId,
    query: Annotated[LogQuery, Query()],
    context: ContextDependency,
    wanted: RangeHeader = None,
) -> Response:
    """What the job in which the run was last made printed, before and after the run, too: one job makes all runs."""
    experiment_id, attempt = job_logs.attempt_of_run(context.database, run_id)
    return _answer(context, experiment_id, attempt, wanted, query.tail_bytes)


def _answer(
    context: Context, experiment_id: str, attempt: int | None, wanted: str | None, tail_bytes: int
) -> Response:
    standing = job_logs.end(context.database, experiment_id, attempt)
    asked = parse_range(wanted, standing.end_byte)
    piece = job_logs.read(
        context.database,
        experiment_id,
        standing.attempt,
        first_byte=-tail_bytes if asked is None else asked.first_byte,
        length=LONGEST_ANSWER if asked is None or asked.length is None else asked.length,
    )
    if asked is None:
        return Response(piece.data, 200, _headers(piece), media_type="text/plain")
    if not piece.data:
        raise RangeNotSatisfiable(
            f"the log holds the bytes from {piece.kept_from} up to {piece.end_byte}, without the last",
            piece.end_byte,
        )
    last = piece.first_byte + len(piece.data) - 1
    length = piece.end_byte if piece.is_complete else "*"
    headers = {**_headers(piece), "Content-Range": f"bytes {piece.first_byte}-{last}/{length}"}
    return Response(piece.data, 206, headers, media_type="text/plain")


def _headers(piece: LogPiece) -> dict[str, str]:
    return {
        "Accept-Ranges": "bytes",
        "X-Log-Kept-From": str(piece.kept_from),
        "X-Log-End": str(piece.end_byte),
        "X-Log-Complete": "true" if piece.is_complete else "false",
    }
