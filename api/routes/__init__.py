"""One file per noun; `ROUTERS` is all of them."""

from api.routes import comparisons, docs, experiments, health, internal, pages, runs, validation

ROUTERS = (
    experiments.router,
    runs.router,
    comparisons.router,
    validation.router,
    health.router,
    internal.router,
    docs.router,
    pages.router,
)
"""In the order in which /docs lists them."""
