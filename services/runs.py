"""Runs as they are read: lists of an experiment's, and one with its attempts."""

from typing import Any

from sqlalchemy import select

from services import cursors
from services.database import Database
from services.errors import NotFound
from services.states import RunState
from services.tables import Arm, Attempt, Experiment, Run
from services.views import AttemptView, Page, RunView

_COPIED = tuple(
    name
    for name in RunView.model_fields
    if name not in {"arm", "is_terminal", "non_finite", "flags", "attempts"}
)


def list_runs(
    db: Database,
    experiment_id: str,
    *,
    states: tuple[RunState, ...] = (),
    arm: str | None = None,
    cursor: str | None = None,
    limit: int = 100,
) -> Page[RunView]:
    """An experiment's runs, in the order in which they are made.

    Args:
        db: The database.
        experiment_id: Which experiment.
        states: Any of these states; empty for all.
        arm: Only this arm's.
        cursor: Where the last page ended.
        limit: Most of them on one page.

    Raises:
        NotFound: There is no such experiment.
        QueryError: Cursor or limit can't be used.
    """
    cursors.check_limit(limit)
    question = {"experiment": experiment_id, "states": sorted(states), "arm": arm}
    statement = (
        select(Run, Arm.name)
        .join(Arm, Arm.key == Run.arm_key)
        .where(Run.experiment_id == experiment_id)
        .order_by(Run.round, Run.position)
        .limit(limit + 1)
    )
    if states:
        statement = statement.where(Run.state.in_(states))
    if arm is not None:
        statement = statement.where(Arm.name == arm)
    if cursor is not None:
        after = cursors.decode(question, cursor, (int, int))
        # Spelt out rather than as a pair: both databases then use the index on (experiment, round, position).
        statement = statement.where(
            (Run.round > after[0]) | ((Run.round == after[0]) & (Run.position > after[1]))
        )
    with db.read() as session:
        if session.get(Experiment, experiment_id) is None:
            raise NotFound("experiment", experiment_id)
        found = session.execute(statement).all()
        items = tuple(_view(run, name) for run, name in found[:limit])
    last = found[limit - 1][0] if len(found) > limit else None
    return Page(
        items=items, next_cursor=cursors.encode(question, [last.round, last.position]) if last else None
    )


def get(db: Database, run_id: str) -> RunView:
    """One run with every start of it.

    Raises:
        NotFound: There is none of that id.
    """
    with db.read() as session:
        found = session.execute(
            select(Run, Arm.name).join(Arm, Arm.key == Run.arm_key).where(Run.id == run_id)
        ).one_or_none()
        if found is None:
            raise NotFound("run", run_id)
        run, arm = found
        attempts = session.scalars(
            select(Attempt).where(Attempt.run_key == run.key).order_by(Attempt.attempt)
        )
        return _view(
            run,
            arm,
            tuple(
                AttemptView(**{name: getattr(attempt, name) for name in AttemptView.model_fields})
                for attempt in attempts
            ),
        )


def _view(run: Run, arm: str, attempts: tuple[AttemptView, ...] = ()) -> RunView:
    fields: dict[str, Any] = {name: getattr(run, name) for name in _COPIED}
    return RunView(
        **fields,
        arm=arm,
        is_terminal=RunState(run.state).is_terminal,
        non_finite=run.non_finite or {},
        flags=tuple(run.flags or ()),
        attempts=attempts,
    )
