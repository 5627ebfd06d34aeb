"""The pages at `/`: what is there, how it stands, what it says. Plain HTML, rendered here."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse

from api import pages
from api.auth import needs
from api.context import ContextDependency
from api.pages import filters
from api.routes.experiments import Cursor, ExperimentId
from services import comparisons, experiments
from services.errors import NotFound

PAGE_LENGTH = 50
REFRESH_S = 5
"""Seconds after which the page of an experiment that has not ended loads itself again."""

router = APIRouter(include_in_schema=False)


@router.get("/", openapi_extra=needs("read"), response_class=HTMLResponse)
def experiments_page(
    context: ContextDependency, cursor: Annotated[Cursor | None, Query()] = None
) -> HTMLResponse:
    """All experiments with their states and verdicts, newest first."""
    page = experiments.list_experiments(context.database, cursor=cursor, limit=PAGE_LENGTH)
    background = context.background
    return pages.render(
        "experiments.html",
        experiments=page.items,
        next_cursor=page.next_cursor,
        first=cursor is None,
        cluster_problem=None if background is None else background.cluster_problem(),
    )


@router.get("/experiments/{experiment_id}", openapi_extra=needs("read"), response_class=HTMLResponse)
def experiment_page(
    request: Request, experiment_id: ExperimentId, context: ContextDependency
) -> HTMLResponse:
    """One experiment: its answer, its runs' states, where it runs.

    That there is none is a page for browsers, which ask for one, and a problem document for everybody else.
    """
    try:
        experiment = experiments.get(context.database, experiment_id)
        comparison = comparisons.compare(context.database, experiment_id)
    except NotFound:
        if "text/html" not in request.headers.get("accept", ""):
            raise
        return pages.render("missing.html", status=404, experiment_id=experiment_id)
    return pages.render(
        "experiment.html",
        experiment=experiment,
        comparison=comparison,
        columns=filters.columns(comparison),
        address=str(request.base_url).rstrip("/"),
        refresh_s=None if experiment.is_terminal else REFRESH_S,
    )
