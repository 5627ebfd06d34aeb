"""Verdicts across experiments: which arms saved what, and under which conditions."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from api.auth import needs
from api.context import ContextDependency
from api.openapi import problems
from api.responses import cacheable
from api.routes.experiments import Cursor, Limit, parse_tags
from services import findings
from services.findings import FindingFilter
from services.instants import Instant
from services.views import FindingView, Page, Verdict

router = APIRouter(tags=["comparisons"])

Word = Annotated[str, Field(max_length=64, pattern=r"^[a-z0-9_]+$")]
Count = Annotated[int, Field(ge=1, lt=2**31)]


class FindingQuery(BaseModel):
    """Filters of the list; all that are given must hold, and unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    metric: Word | None = None
    """Verdicts on this metric; without it, on each experiment's primary one."""
    verdict: list[Verdict] = Field(default_factory=list, max_length=4)
    """Any of these verdicts; may be repeated."""
    saving_at_least: Annotated[float, Field(ge=-1e6, lt=1, examples=[0.3])] | None = None
    """Share saved, as a fraction: 0.3 for 30 % or more. Negative finds arms that cost more, too."""
    strategy: Annotated[Word, Field(examples=["phantom"])] | None = None
    """The arm's strategy."""
    width_at_least: Count | None = None
    """Smallest width, n."""
    width_at_most: Count | None = None
    """Largest width, n."""
    world_size: Count | None = None
    """Ranks, p."""
    dtype: Word | None = None
    """Number format of the arm."""
    board: (
        Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[^\x00]*$", examples=["H100"])] | None
    ) = None
    """Part of the model name of one of the experiment's boards or processors, in any case."""
    tag: list[Annotated[str, Field(max_length=264)]] = Field(
        default_factory=list, max_length=32, examples=[["team=vision"]]
    )
    """`key=value` of the experiment; may be repeated, and all must hold."""
    equal_loss: bool = False
    """Only arms that are known to have ended at their baseline's loss, or were compared at the target loss."""
    measured: bool = False
    """Only measured energies, no estimates."""
    submitted_after: Instant | None = None
    """Experiments accepted at or after this time."""
    submitted_before: Instant | None = None
    """Experiments accepted before this time."""
    order: Literal["newest", "largest_saving"] = "newest"
    """Newest experiment first, or largest saving first (which leaves out what has no ratio)."""
    cursor: Cursor | None = None
    """`next_cursor` of the page before, with the same filters and order."""
    limit: Limit = 50
    """Most verdicts on the page."""


@router.get(
    "/v1/findings", response_model=Page[FindingView], openapi_extra=needs("read"), responses=problems(422)
)
def find(request: Request, query: Annotated[FindingQuery, Query()], context: ContextDependency) -> Response:
    """Verdicts of ended experiments, each with its arm: all phantom arms on H100s that saved more than 30 % at
    equal loss, say, are `?strategy=phantom&board=H100&saving_at_least=0.3&verdict=saves&equal_loss=true`.
    """
    filters = FindingFilter(
        metric=query.metric,
        verdicts=tuple(query.verdict),
        saving_at_least=query.saving_at_least,
        strategy=query.strategy,
        width_at_least=query.width_at_least,
        width_at_most=query.width_at_most,
        world_size=query.world_size,
        dtype=query.dtype,
        device=query.board,
        tags=parse_tags(query.tag),
        equal_loss=query.equal_loss,
        measured=query.measured,
        submitted_after=query.submitted_after,
        submitted_before=query.submitted_before,
    )
    page = findings.find(
        context.database, filters=filters, order=query.order, cursor=query.cursor, limit=query.limit
    )
    return cacheable(request, page)
