"""Experiments as they are read: one, and lists by filter, newest first."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session, load_only, undefer

from phantom_core.described import describe
from phantom_core.flags import Flag
from services import cursors, timings
from services.database import Database, now
from services.errors import NotFound
from services.instants import Instant
from services.states import ExperimentState
from services.tables import (
    Arm,
    Base,
    Comparison,
    Device,
    Experiment,
    ExperimentAttempt,
    ExperimentTag,
    Run,
)
from services.views import (
    ArmDetail,
    ArmView,
    DeviceView,
    ExperimentDetail,
    ExperimentView,
    Page,
    VerdictView,
    View,
)

SearchedText = Annotated[str, Field(max_length=200, pattern=r"^[^\x00]*$")]
"""Text to look for; PostgreSQL has no NUL."""


class ExperimentFilter(BaseModel):
    """What to list; None and empty leave a condition out, and all that are given must hold."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=describe)

    states: tuple[ExperimentState, ...] = ()
    """Any of these states."""
    name_contains: SearchedText | None = None
    """Part of the name, in any case."""
    tags: dict[SearchedText, SearchedText] = Field(default_factory=dict, max_length=32)
    """All of these tags, with these values."""
    strategy: SearchedText | None = None
    """Some arm has this strategy."""
    submitted_after: Instant | None = None
    """Accepted at or after this."""
    submitted_before: Instant | None = None
    """Accepted before this."""


def get(db: Database, experiment_id: str) -> ExperimentDetail:
    """One experiment.

    Raises:
        NotFound: There is none of that id.
    """
    with db.read() as session:
        experiment = session.get(Experiment, experiment_id, options=[undefer(Experiment.spec)])
        if experiment is None:
            raise NotFound("experiment", experiment_id)
        arms = session.scalars(
            select(Arm).where(Arm.experiment_id == experiment_id).order_by(Arm.position)
        ).all()
        devices = session.scalars(
            select(Device).where(Device.experiment_id == experiment_id).order_by(Device.host, Device.uuid)
        )
        attempts = session.scalars(
            select(ExperimentAttempt)
            .where(ExperimentAttempt.experiment_id == experiment_id)
            .order_by(ExperimentAttempt.attempt)
        ).all()
        common = _common(
            experiment,
            _run_counts(session, [experiment_id]).get(experiment_id, {}),
            _verdicts(session, [experiment_id]).get(experiment_id, []),
            attempts,
            now(session),
        )
        return ExperimentDetail(
            **common,
            arms=tuple(
                ArmDetail(**_arm_fields(arm, experiment.baseline), settings=arm.settings, cost=arm.cost)
                for arm in arms
            ),
            devices=tuple(DeviceView(**_copied(device, DeviceView)) for device in devices),
            attempts=timings.of_attempts(experiment, attempts),
            spec=experiment.spec,
        )


def list_experiments(
    db: Database,
    *,
    filters: ExperimentFilter | None = None,
    cursor: str | None = None,
    limit: int = 50,
) -> Page[ExperimentView]:
    """Experiments, newest first.

    Args:
        db: The database.
        filters: Which; None for all.
        cursor: Where the last page ended.
        limit: Most of them on one page.

    Raises:
        QueryError: Cursor or limit can't be used.
    """
    filters = filters or ExperimentFilter()
    cursors.check_limit(limit)
    question = filters.model_dump(mode="json")
    statement = _matching(filters).order_by(Experiment.id.desc()).limit(limit + 1)
    if cursor is not None:
        statement = statement.where(Experiment.id < cursors.decode(question, cursor, (str,))[0])
    with db.read() as session:
        found = session.scalars(statement).all()
        shown = found[:limit]
        identifiers = [experiment.id for experiment in shown]
        arms = _arms(session, identifiers)
        counts, verdicts = _run_counts(session, identifiers), _verdicts(session, identifiers)
        attempts = _attempts(session, identifiers)
        moment = now(session)
        items = tuple(
            ExperimentView(
                **_common(
                    experiment,
                    counts.get(experiment.id, {}),
                    verdicts.get(experiment.id, []),
                    attempts.get(experiment.id, []),
                    moment,
                ),
                arms=tuple(
                    ArmView(**_arm_fields(arm, experiment.baseline)) for arm in arms.get(experiment.id, [])
                ),
            )
            for experiment in shown
        )
    more = len(found) > limit
    return Page(items=items, next_cursor=cursors.encode(question, [shown[-1].id]) if more else None)


def _matching(filters: ExperimentFilter) -> Select[Experiment]:
    statement = select(Experiment)
    if filters.states:
        statement = statement.where(Experiment.state.in_(filters.states))
    if filters.name_contains:
        statement = statement.where(Experiment.name.icontains(filters.name_contains, autoescape=True))
    for name, value in sorted(filters.tags.items()):
        statement = statement.where(
            Experiment.id.in_(
                select(ExperimentTag.experiment_id).where(
                    ExperimentTag.name == name, ExperimentTag.value == value
                )
            )
        )
    if filters.strategy is not None:
        statement = statement.where(
            Experiment.id.in_(select(Arm.experiment_id).where(Arm.strategy == filters.strategy))
        )
    if filters.submitted_after is not None:
        statement = statement.where(Experiment.submitted_at >= filters.submitted_after)
    if filters.submitted_before is not None:
        statement = statement.where(Experiment.submitted_at < filters.submitted_before)
    return statement


def _common(
    experiment: Experiment,
    counts: dict[str, int],
    verdicts: Sequence[VerdictView],
    attempts: Sequence[ExperimentAttempt],
    moment: datetime,
) -> dict[str, Any]:
    """Fields that lists and single answers share."""
    computed = {"arms", "is_terminal", "runs", "verdicts", "timings", "phase"}
    copied = ExperimentView.model_fields.keys() - computed
    spent, phase = timings.of_experiment(experiment, attempts, moment)
    return {
        **{name: getattr(experiment, name) for name in copied},
        "is_terminal": ExperimentState(experiment.state).is_terminal,
        "runs": counts,
        "verdicts": tuple(verdicts),
        "timings": spent,
        "phase": phase,
    }


def _arm_fields(arm: Arm, baseline: str) -> dict[str, Any]:
    return {
        "name": arm.name,
        "position": arm.position,
        "strategy": arm.strategy,
        "world_size": arm.world_size,
        "width": arm.width,
        "depth": arm.depth,
        "ghosts": arm.ghosts,
        "dtype": arm.dtype,
        "control_of": tuple(arm.control_of),
        "is_baseline": arm.name == baseline,
    }


def _copied(row: Base, view: type[View]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in view.model_fields}


def _arms(session: Session, identifiers: Sequence[str]) -> dict[str, list[Arm]]:
    light = [
        getattr(Arm, name) for name in ["key", "experiment_id", "name", "position", "strategy", "world_size"]
    ]
    light += [Arm.width, Arm.depth, Arm.ghosts, Arm.dtype, Arm.control_of]
    grouped: dict[str, list[Arm]] = {}
    statement = (
        select(Arm)
        .where(Arm.experiment_id.in_(identifiers))
        .order_by(Arm.position)
        .options(load_only(*light, raiseload=True))
    )
    for arm in session.scalars(statement):
        grouped.setdefault(arm.experiment_id, []).append(arm)
    return grouped


def _attempts(session: Session, identifiers: Sequence[str]) -> dict[str, list[ExperimentAttempt]]:
    grouped: dict[str, list[ExperimentAttempt]] = {}
    statement = (
        select(ExperimentAttempt)
        .where(ExperimentAttempt.experiment_id.in_(identifiers))
        .order_by(ExperimentAttempt.attempt)
    )
    for attempt in session.scalars(statement):
        grouped.setdefault(attempt.experiment_id, []).append(attempt)
    return grouped


def _run_counts(session: Session, identifiers: Sequence[str]) -> dict[str, dict[str, int]]:
    grouped: dict[str, dict[str, int]] = {}
    statement = (
        select(Run.experiment_id, Run.state, func.count())
        .where(Run.experiment_id.in_(identifiers))
        .group_by(Run.experiment_id, Run.state)
        .order_by(Run.state)
    )
    for identifier, state, count in session.execute(statement):
        grouped.setdefault(identifier, {})[state] = count
    return grouped


def _verdicts(session: Session, identifiers: Sequence[str]) -> dict[str, list[VerdictView]]:
    grouped: dict[str, list[VerdictView]] = {}
    statement = (
        select(Comparison, Arm.name)
        .join(Arm, Arm.key == Comparison.arm_key)
        .where(Comparison.experiment_id.in_(identifiers), Comparison.is_primary)
        .order_by(Arm.position)
    )
    for comparison, arm in session.execute(statement):
        grouped.setdefault(comparison.experiment_id, []).append(
            VerdictView(
                arm=arm,
                metric=comparison.metric,
                verdict=comparison.verdict,
                sentence=comparison.sentence,
                ratio=comparison.ratio,
                ratio_low=comparison.ratio_low,
                ratio_high=comparison.ratio_high,
                estimated=Flag.ESTIMATED in comparison.flags,
            )
        )
    return grouped
