"""One file per noun; `ROUTERS` is all of them."""

from api.routes import (
    comparisons,
    docs,
    events,
    experiments,
    findings,
    health,
    internal,
    logs,
    metrics,
    pages,
    queue,
    runs,
    submissions,
    validation,
)

ROUTERS = (
    submissions.router,
    experiments.router,
    events.router,
    runs.router,
    logs.router,
    comparisons.router,
    findings.router,
    queue.router,
    validation.router,
    health.router,
    metrics.router,
    internal.router,
    docs.router,
    pages.router,
)
"""In the order in which /docs lists them."""
