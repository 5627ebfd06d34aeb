"""Verdicts across experiments: "all phantom arms on H100s that saved more than 30 % at equal loss"."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import ColumnElement, Select, case, select, tuple_
from sqlalchemy.orm import Session, aliased

from phantom_core.described import describe
from services import cursors
from services.catalogue import SearchedText
from services.database import Database
from services.instants import Instant
from services.metrics import METRICS
from services.tables import Arm, Comparison, Device, Experiment, ExperimentTag
from services.views import FindingView, Page, Verdict

AT_TARGET = tuple(metric.name for metric in METRICS if metric.of_target)
"""Metrics up to the target loss, which is the same for every arm."""


class FindingFilter(BaseModel):
    """What to find; None and empty leave a condition out, and all that are given must hold."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, json_schema_extra=describe)

    metric: SearchedText | None = None
    """This metric; None takes each experiment's primary one."""
    verdicts: tuple[Verdict, ...] = ()
    """Any of these verdicts."""
    saving_at_least: Annotated[float, Field(ge=-1e6, lt=1)] | None = None
    """Share saved, as a fraction: 0.3 for 30 % or more. Negative for arms that cost more."""
    strategy: SearchedText | None = None
    """The arm's strategy."""
    width_at_least: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """Smallest width, n."""
    width_at_most: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """Largest width, n."""
    world_size: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """Ranks, p."""
    dtype: SearchedText | None = None
    """Number format."""
    device: SearchedText | None = None
    """Part of the model name of one of the experiment's boards or processors, in any case."""
    tags: dict[SearchedText, SearchedText] = Field(default_factory=dict, max_length=32)
    """All of these tags of the experiment, with these values."""
    equal_loss: bool = False
    """Leaves out arms that ended at a different loss than their baseline, or at one that isn't known; what was
    compared at the target loss is at equal loss, and what never reached it is left out."""
    measured: bool = False
    """Leaves out estimates."""
    submitted_after: Instant | None = None
    """Experiments accepted at or after this."""
    submitted_before: Instant | None = None
    """Experiments accepted before this."""


def find(
    db: Database,
    *,
    filters: FindingFilter | None = None,
    order: Literal["newest", "largest_saving"] = "newest",
    cursor: str | None = None,
    limit: int = 50,
) -> Page[FindingView]:
    """Verdicts of ended experiments.

    Args:
        db: The database.
        filters: Which; None for all.
        order: Newest experiment first, or smallest ratio first (which leaves out what has no ratio).
        cursor: Where the last page ended.
        limit: Most of them on one page.

    Raises:
        QueryError: Cursor or limit can't be used.
    """
    filters = filters or FindingFilter()
    cursors.check_limit(limit)
    question = {**filters.model_dump(mode="json"), "order": order}
    statement = _matching(filters)
    if order == "newest":
        statement = statement.order_by(Comparison.experiment_id.desc(), Comparison.arm_key, Comparison.metric)
    else:
        statement = statement.where(Comparison.ratio.is_not(None)).order_by(
            Comparison.ratio, Comparison.experiment_id, Comparison.arm_key, Comparison.metric
        )
    if cursor is not None:
        statement = _after(statement, order, cursors.decode(question, cursor, _KINDS[order]))
    with db.read() as session:
        found = session.execute(statement.limit(limit + 1)).all()
        devices = _devices(session, {comparison.experiment_id for comparison, _, _ in found})
    items = tuple(_view(*row, devices.get(row[2].id, ())) for row in found[:limit])
    last = found[limit - 1][0] if len(found) > limit else None
    place = [] if last is None else [last.experiment_id, last.arm_key, last.metric]
    if last is not None and order == "largest_saving":
        place.insert(0, last.ratio)
    return Page(items=items, next_cursor=cursors.encode(question, place) if last else None)


_KINDS: dict[str, tuple[type, ...]] = {
    "newest": (str, int, str),
    "largest_saving": (float, str, int, str),
}


def _after(
    statement: Select[Comparison, Arm, Experiment], order: str, place: list[object]
) -> Select[Comparison, Arm, Experiment]:
    rest = tuple_(Comparison.arm_key, Comparison.metric)
    if order == "newest":
        experiment, *others = place
        return statement.where(
            (Comparison.experiment_id < experiment)
            | ((Comparison.experiment_id == experiment) & (rest > tuple_(*others)))
        )
    return statement.where(
        tuple_(Comparison.ratio, Comparison.experiment_id, Comparison.arm_key, Comparison.metric)
        > tuple_(*place)
    )


def _matching(filters: FindingFilter) -> Select[Comparison, Arm, Experiment]:
    statement = (
        select(Comparison, Arm, Experiment)
        .join(Arm, Arm.key == Comparison.arm_key)
        .join(Experiment, Experiment.id == Comparison.experiment_id)
    )
    conditions = [
        Comparison.is_primary if filters.metric is None else Comparison.metric == filters.metric,
    ]
    if filters.verdicts:
        conditions.append(Comparison.verdict.in_(filters.verdicts))
    if filters.saving_at_least is not None:
        conditions.append(Comparison.ratio <= 1 - filters.saving_at_least)
    if filters.strategy is not None:
        conditions.append(Arm.strategy == filters.strategy)
    if filters.width_at_least is not None:
        conditions.append(Arm.width >= filters.width_at_least)
    if filters.width_at_most is not None:
        conditions.append(Arm.width <= filters.width_at_most)
    if filters.world_size is not None:
        conditions.append(Arm.world_size == filters.world_size)
    if filters.dtype is not None:
        conditions.append(Arm.dtype == filters.dtype)
    if filters.device is not None:
        named = Device.name.icontains(filters.device, autoescape=True)
        conditions.append(Experiment.id.in_(select(Device.experiment_id).where(named)))
    for name, value in sorted(filters.tags.items()):
        tagged = select(ExperimentTag.experiment_id).where(
            ExperimentTag.name == name, ExperimentTag.value == value
        )
        conditions.append(Experiment.id.in_(tagged))
    if filters.equal_loss:
        conditions += [Comparison.loss_differs.is_(False), _loss_is_known()]
    if filters.measured:
        conditions.append(Comparison.estimated.is_(False))
    if filters.submitted_after is not None:
        conditions.append(Experiment.submitted_at >= filters.submitted_after)
    if filters.submitted_before is not None:
        conditions.append(Experiment.submitted_at < filters.submitted_before)
    return statement.where(*conditions)


def _loss_is_known() -> ColumnElement[bool]:
    losses = aliased(Comparison)
    both = select(losses.arm_key).where(
        losses.arm_key == Comparison.arm_key,
        losses.metric == "final_evaluation_loss",
        losses.ratio.is_not(None),
    )
    # Without a ratio nothing was compared at the target: some never reached it.
    at_target = Comparison.ratio.is_not(None)
    return case((Comparison.metric.in_(AT_TARGET), at_target), else_=both.exists())


def _devices(session: Session, identifiers: set[str]) -> dict[str, tuple[str, ...]]:
    rows = session.execute(
        select(Device.experiment_id, Device.name)
        .where(Device.experiment_id.in_(identifiers))
        .distinct()
        .order_by(Device.experiment_id, Device.name)
    )
    named: dict[str, tuple[str, ...]] = {}
    for identifier, name in rows:
        if name is not None:
            named[identifier] = (*named.get(identifier, ()), name)
    return named


def _view(comparison: Comparison, arm: Arm, experiment: Experiment, devices: Sequence[str]) -> FindingView:
    return FindingView(
        arm=arm.name,
        metric=comparison.metric,
        verdict=comparison.verdict,
        sentence=comparison.sentence,
        ratio=comparison.ratio,
        ratio_low=comparison.ratio_low,
        ratio_high=comparison.ratio_high,
        experiment_id=experiment.id,
        experiment_name=experiment.name,
        tags=experiment.tags,
        submitted_at=experiment.submitted_at,
        devices=tuple(devices),
        strategy=arm.strategy,
        world_size=arm.world_size,
        width=arm.width,
        depth=arm.depth,
        ghosts=arm.ghosts,
        dtype=arm.dtype,
        baseline=experiment.baseline,
        is_primary=comparison.is_primary,
        pairs=comparison.pairs,
        estimated=comparison.estimated,
        loss_differs=comparison.loss_differs,
        flags=tuple(comparison.flags),
    )
