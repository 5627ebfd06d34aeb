"""The answer: the arms of one experiment against its baseline."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from api.auth import needs
from api.context import ContextDependency
from api.openapi import problems
from api.responses import cacheable
from api.routes.experiments import ExperimentId
from services import comparisons
from services.views import ComparisonView

router = APIRouter(tags=["comparisons"])


class ComparisonQuery(BaseModel):
    """What to compare with."""

    model_config = ConfigDict(extra="forbid")

    baseline: Annotated[str, Field(max_length=120, pattern=r"^[^\x00]*$")] | None = None
    """Name of an arm; the experiment's own baseline by default."""
    precision: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] | None = None
    """Wished half-width of the intervals as a share, such as 0.01, for which `rounds_for_precision` is told."""


@router.get(
    "/v1/experiments/{experiment_id}/comparison",
    response_model=ComparisonView,
    openapi_extra=needs("read"),
    responses=problems(404, 422),
)
def comparison(
    request: Request,
    experiment_id: ExperimentId,
    query: Annotated[ComparisonQuery, Query()],
    context: ContextDependency,
) -> Response:
    """Every arm against the baseline: paired log-ratio per round, bootstrap interval, verdict, flags.

    Given as soon as a round is complete; `final` says whether it may still change.
    """
    found = comparisons.compare(
        context.database, experiment_id, baseline=query.baseline, precision=query.precision
    )
    return cacheable(request, found)
