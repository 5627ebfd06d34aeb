"""Figures for Prometheus."""

from fastapi import APIRouter, Response

from api.auth import needs
from api.context import ContextDependency
from api.metrics import CONTENT_TYPE
from api.openapi import problems

router = APIRouter(tags=["health"])


@router.get(
    "/metrics",
    openapi_extra=needs("read"),
    response_class=Response,
    responses={
        200: {
            "description": "Prometheus' text format.",
            "content": {
                "text/plain": {
                    "schema": {"type": "string"},
                    "example": 'ghostwatt_experiments{state="queued"} 3.0\n',
                }
            },
        },
        **problems(503),
    },
)
def metrics(context: ContextDependency) -> Response:
    """Requests, queue, leases, heartbeats, ingest, streams and connections, for Prometheus.

    It needs a key of scope `read` wherever every other address does: in Prometheus' configuration,
    `authorization: {credentials_file: ...}`.
    """
    return Response(context.metrics.text(), media_type=CONTENT_TYPE)
