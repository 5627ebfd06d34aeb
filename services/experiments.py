"""Experiments: submit, look at, cancel, delete."""

import hashlib
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from phantom_core.checks import Capacity
from phantom_core.plan import Plan, PlannedArm, make_plan, schedule
from phantom_core.spec import ExperimentSpec, PhantomArm
from services import deletion
from services.catalogue import get, list_experiments
from services.database import Database, now
from services.endings import end_experiment
from services.errors import IdempotencyConflict, NotFound
from services.ids import experiment_id as new_id
from services.ids import run_id
from services.moves import lock_experiment, log, log_line, move_experiment
from services.states import ExperimentState, RunState
from services.tables import Arm, Experiment, ExperimentTag, IdempotencyKey, Run, table
from services.upserts import insert_new
from services.validation import accept
from services.views import ArmCostView

__all__ = ["get", "list_experiments", "move_experiment", "request_cancel", "request_delete", "submit"]

_EXPERIMENTS, _TAGS, _ARMS, _RUNS = table(Experiment), table(ExperimentTag), table(Arm), table(Run)


def submit(
    db: Database,
    spec: ExperimentSpec,
    *,
    capacity: Capacity | None = None,
    priority: int = 0,
    submitted_by: str | None = None,
    idempotency_key: str | None = None,
) -> str:
    """Accepts a spec: writes experiment, arms and runs as `queued`, all or nothing.

    Args:
        db: The database.
        spec: What to run.
        capacity: What the cluster has; None skips the checks that need it.
        priority: Higher goes first; within one priority the queue is in order of arrival.
        submitted_by: Id of the API key that asked; None without one.
        idempotency_key: A repeat with the same key by the same caller makes nothing new.

    Returns:
        The experiment's id; the earlier one for a repeat.

    Raises:
        SpecError: The spec can't be run as it is.
        IdempotencyConflict: The key was used for another spec.
    """
    plan = make_plan(spec)
    costs = accept(plan, capacity)
    body = spec.model_dump_json()
    with db.write() as session:
        moment = now(session)
        identifier = new_id()
        if idempotency_key is not None:
            digest = hashlib.sha256(f"{priority}:{body}".encode()).digest()
            earlier = _claim_key(session, submitted_by or "", idempotency_key, digest, identifier, moment)
            if earlier is not None:
                return earlier
        _insert(session, identifier, plan, costs, priority, submitted_by, moment)
    return identifier


def request_cancel(db: Database, experiment_id: str) -> bool:
    """Writes down that an experiment shall be cancelled; one that no dispatcher has taken ends at once.

    Args:
        db: The database.
        experiment_id: Which.

    Returns:
        Whether there is anything to cancel: False if it had ended already.

    Raises:
        NotFound: There is no such experiment.
    """
    with db.write() as session:
        experiment = _locked(session, experiment_id)
        return _intend_cancel(session, experiment)


def request_delete(db: Database, experiment_id: str) -> bool:
    """Writes down that an experiment shall be deleted, with all that was measured; it is cancelled first.

    Args:
        db: The database.
        experiment_id: Which.

    Returns:
        Whether it is gone; False if it goes once its job has ended.

    Raises:
        NotFound: There is no such experiment.
    """
    with db.write() as session:
        experiment = _locked(session, experiment_id)
        _intend_cancel(session, experiment)
        if experiment.delete_requested_at is None:
            moment = now(session)
            experiment.delete_requested_at = moment
            log(session, experiment, "delete_requested", {}, moment=moment)
    return deletion.delete_if_asked(db, experiment_id)


def _intend_cancel(session: Session, experiment: Experiment) -> bool:
    if ExperimentState(experiment.state).is_terminal:
        return False
    if experiment.cancel_requested_at is None:
        moment = now(session)
        experiment.cancel_requested_at = moment
        log(session, experiment, "cancel_requested", {}, moment=moment)
    if experiment.state == ExperimentState.QUEUED:
        end_experiment(session, experiment, ExperimentState.CANCELLED, message="cancelled before it began")
    return True


def _locked(session: Session, experiment_id: str) -> Experiment:
    experiment = lock_experiment(session, experiment_id)
    if experiment is None:
        raise NotFound("experiment", experiment_id)
    return experiment


def _claim_key(
    session: Session, caller: str, key: str, digest: bytes, identifier: str, moment: datetime
) -> str | None:
    """None if the key is this request's now, else the experiment that it made earlier."""
    values = {
        "caller": caller,
        "key": key,
        "payload_sha256": digest,
        "experiment_id": identifier,
        "created_at": moment,
    }
    # Where another request with the key is under way, the insert waits until that one is written or undone.
    if insert_new(session, IdempotencyKey, [values]):
        return None
    earlier = session.scalars(
        select(IdempotencyKey).where(IdempotencyKey.caller == caller, IdempotencyKey.key == key)
    ).one()
    if earlier.payload_sha256 != digest:
        raise IdempotencyConflict(key, earlier.experiment_id)
    return earlier.experiment_id


def _insert(
    session: Session,
    identifier: str,
    plan: Plan,
    costs: Sequence[ArmCostView],
    priority: int,
    submitted_by: str | None,
    moment: datetime,
) -> None:
    spec = plan.spec
    # Straight to the tables: the ORM's bookkeeping for rows that nobody looks at again costs more than they do.
    connection = session.connection()
    connection.execute(
        _EXPERIMENTS.insert(),
        {
            "id": identifier,
            "name": spec.name,
            "state": ExperimentState.QUEUED,
            "description": spec.description,
            "tags": spec.tags,
            "rounds": spec.measurement.rounds_planned,
            "sample_rate_hz": spec.measurement.sample_rate_hz,
            "spec": spec.model_dump(mode="json"),
            "plan": plan.model_dump(mode="json", exclude={"spec"}),
            "baseline": plan.baseline,
            "priority": priority,
            "submitted_by": submitted_by,
            "submitted_at": moment,
            "version": 1,
            "attempt": 0,
        },
    )
    if spec.tags:
        connection.execute(
            _TAGS.insert(),
            [
                {"experiment_id": identifier, "name": name, "value": value}
                for name, value in spec.tags.items()
            ],
        )
    arms = connection.execute(
        _ARMS.insert().returning(_ARMS.c.name, _ARMS.c.key),
        [
            _arm_row(identifier, position, planned, cost)
            for position, (planned, cost) in enumerate(zip(plan.arms, costs, strict=True))
        ],
    )
    keys = {arm.name: arm.key for arm in arms}
    positions = {planned.name: position for position, planned in enumerate(plan.arms)}
    connection.execute(
        _RUNS.insert(),
        [
            {
                "id": run_id(identifier, run.round, positions[run.arm]),
                "experiment_id": identifier,
                "arm_key": keys[run.arm],
                "round": run.round,
                "position": run.position,
                "seed": run.seed,
                "state": RunState.QUEUED,
                "attempt": 0,
            }
            for run in schedule(plan)
        ],
    )
    log_line(
        session,
        experiment_id=identifier,
        subject_id=identifier,
        attempt=0,
        seq=1,
        kind="state",
        payload={"from": None, "to": ExperimentState.QUEUED},
        moment=moment,
    )


def _arm_row(identifier: str, position: int, planned: PlannedArm, cost: ArmCostView) -> dict[str, object]:
    return {
        "experiment_id": identifier,
        "name": planned.name,
        "position": position,
        "strategy": planned.arm.strategy,
        "world_size": planned.arm.world_size,
        "width": planned.model.width,
        "depth": planned.model.depth,
        "ghosts": planned.arm.ghosts if isinstance(planned.arm, PhantomArm) else None,
        "dtype": planned.model.number_format,
        "settings": planned.model_dump(mode="json"),
        "control_of": list(planned.control_of),
        "cost": cost.model_dump(mode="json"),
    }
