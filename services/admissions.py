"""Accepted experiments into their tables: one transaction, in as few statements as each database needs.

This is what a caller of `POST /v1/experiments` waits for. On PostgreSQL it is one statement, and so one way to the
server and back; on SQLite the driver is asked directly. Building each row through SQLAlchemy costs several times
as much.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from phantom_core.plan import Plan, PlannedArm, schedule
from phantom_core.spec import PhantomArm
from services.database import Cursor, Database
from services.ids import run_id
from services.moves import SERVICE
from services.states import ExperimentState, RunState
from services.views import ArmCostView

_KEY = "INSERT INTO idempotency_keys (caller, key, payload_sha256, experiment_id, created_at)"

_EXPERIMENT = (
    "id, name, state, description, tags, rounds, sample_rate_hz, spec, plan, baseline, priority, submitted_by, "
    "submitted_at, version, attempt"
)
_ARM = "name, position, strategy, world_size, width, depth, ghosts, dtype, settings, control_of, cost, experiment_id"
_RUN = "id, experiment_id, arm_key, round, position, seed, state, attempt"
_EVENT = "experiment_id, subject_id, attempt, source, seq, kind, at, received_at, payload"
_EVENT_PAYLOAD = json.dumps({"from": None, "to": ExperimentState.QUEUED})


@dataclass(frozen=True)
class KeyClaim:
    """An Idempotency-Key that a submission comes with."""

    caller: str
    """Whose key it is."""
    key: str
    """As it was sent."""
    payload_sha256: bytes
    """Of what was submitted with it."""


@dataclass(frozen=True)
class Admission:
    """An experiment that is about to be written as `queued`."""

    id: str
    """Its id."""
    plan: Plan
    """What is to be run."""
    costs: Sequence[ArmCostView]
    """What each arm costs by the formulas, in the plan's order."""
    spec_json: str
    """The plan's spec."""
    priority: int
    """Higher goes first."""
    submitted_by: str | None
    """Id of the API key that asked."""


def admit(db: Database, admission: Admission, claim: KeyClaim | None) -> bool:
    """Writes experiment, tags, arms, runs and the first line of the log, all or nothing.

    Args:
        db: The database.
        admission: What to write.
        claim: A key that must be this submission's alone. Where another with the key is under way, this waits
            until that one is written or undone.

    Returns:
        Whether it was written; False if the key is another submission's.

    Raises:
        DatabaseUnavailable: The database can't be reached, or stayed locked.
    """
    return _on_sqlite(db, admission, claim) if db.is_sqlite else _on_postgresql(db, admission, claim)


def _experiment(admission: Admission) -> list[object]:
    """Values of `_EXPERIMENT` up to the moment of submission."""
    plan = admission.plan
    spec = plan.spec
    return [
        admission.id,
        spec.name,
        ExperimentState.QUEUED.value,
        spec.description,
        json.dumps(spec.tags),
        spec.measurement.rounds_planned,
        spec.measurement.sample_rate_hz,
        admission.spec_json,
        plan.model_dump_json(exclude={"spec"}),
        plan.baseline,
        admission.priority,
        admission.submitted_by,
    ]


def _arms(admission: Admission) -> list[list[object]]:
    """Values of `_ARM` up to the experiment."""
    return [
        _arm(position, planned, cost)
        for position, (planned, cost) in enumerate(zip(admission.plan.arms, admission.costs, strict=True))
    ]


def _arm(position: int, planned: PlannedArm, cost: ArmCostView) -> list[object]:
    return [
        planned.name,
        position,
        planned.arm.strategy,
        planned.arm.world_size,
        planned.model.width,
        planned.model.depth,
        planned.arm.ghosts if isinstance(planned.arm, PhantomArm) else None,
        planned.model.number_format,
        planned.model_dump_json(),
        json.dumps(planned.control_of),
        cost.model_dump_json(),
    ]


def _runs(admission: Admission) -> list[tuple[str, int, int, int, int]]:
    """Id, position of the arm, round, position in it, and seed of every run, in the order they are made."""
    positions = {planned.name: position for position, planned in enumerate(admission.plan.arms)}
    return [
        (run_id(admission.id, run.round, arm := positions[run.arm]), arm, run.round, run.position, run.seed)
        for run in schedule(admission.plan)
    ]


def _on_sqlite(db: Database, admission: Admission, claim: KeyClaim | None) -> bool:
    identifier, runs = admission.id, _runs(admission)
    experiment, arms = _experiment(admission), _arms(admission)
    with db.cursor() as cursor:
        # SQLAlchemy's notation of an instant in SQLite.
        moment = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        if claim is not None:
            values = (claim.caller, claim.key, claim.payload_sha256, identifier, moment)
            cursor.execute(f"{_KEY} VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", values)
            if not cursor.rowcount:
                return False
        cursor.execute(_sqlite_insert("experiments", _EXPERIMENT), [*experiment, moment, 1, 0])
        tags = admission.plan.spec.tags
        if tags:
            cursor.executemany(
                "INSERT INTO experiment_tags (experiment_id, name, value) VALUES (?, ?, ?)",
                [(identifier, name, value) for name, value in tags.items()],
            )
        keys = [_sqlite_key(cursor, [*arm, identifier]) for arm in arms]
        cursor.executemany(
            _sqlite_insert("runs", _RUN),
            [
                (run, identifier, keys[arm], number, position, seed, RunState.QUEUED.value, 0)
                for run, arm, number, position, seed in runs
            ],
        )
        cursor.execute(
            _sqlite_insert("events", _EVENT),
            (identifier, identifier, 0, SERVICE, 1, "state", moment, moment, _EVENT_PAYLOAD),
        )
    return True


def _sqlite_insert(table: str, columns: str) -> str:
    places = ", ".join("?" * (columns.count(",") + 1))
    return f"INSERT INTO {table} ({columns}) VALUES ({places})"  # noqa: S608 - names of this file


def _sqlite_key(cursor: Cursor, arm: Sequence[object]) -> int:
    cursor.execute(_sqlite_insert("arms", _ARM), arm)
    return int(cursor.lastrowid)


def _on_postgresql(db: Database, admission: Admission, claim: KeyClaim | None) -> bool:
    values = [
        *_experiment(admission),
        json.dumps(admission.plan.spec.tags),
        # Columns, not objects: their names are in the statement.
        *([list(column) for column in zip(*_arms(admission), strict=True)]),
        *([list(column) for column in zip(*_runs(admission), strict=True)]),
    ]
    if claim is None:
        return bool(db.execute_alone(_POSTGRESQL, tuple(values)))
    key = [claim.caller, claim.key, claim.payload_sha256, admission.id]
    return bool(db.execute_alone(_POSTGRESQL_CLAIMING, tuple(key + values)))


# A foreign key is looked at when the whole statement is done, so that its parts may be in any order.
_INSERTS = f"""
experiment AS (
    INSERT INTO experiments ({_EXPERIMENT})
    SELECT %s, %s, %s, %s, %s::jsonb, %s::int, %s::float8, %s::jsonb, %s::jsonb, %s, %s::int, %s::text,
        clock_timestamp(), 1, 0
    /* source */
    RETURNING id, submitted_at
), tag AS (
    INSERT INTO experiment_tags (experiment_id, name, value)
    SELECT id, given.key, given.value FROM experiment, jsonb_each_text(%s::jsonb) AS given
), arm AS (
    INSERT INTO arms ({_ARM})
    SELECT given.name, given.position, given.strategy, given.world_size, given.width, given.depth, given.ghosts,
        given.dtype, given.settings::jsonb, given.control_of::jsonb, given.cost::jsonb, id
    FROM experiment, unnest(%s::text[], %s::int[], %s::text[], %s::int[], %s::int[], %s::int[], %s::int[], %s::text[],
        %s::text[], %s::text[], %s::text[])
        AS given(name, position, strategy, world_size, width, depth, ghosts, dtype, settings, control_of, cost)
    ORDER BY given.position
    RETURNING key, position
), run AS (
    INSERT INTO runs ({_RUN})
    SELECT given.id, experiment.id, arm.key, given.round, given.position, given.seed, '{RunState.QUEUED.value}', 0
    FROM experiment, arm, unnest(%s::text[], %s::int[], %s::int[], %s::int[], %s::bigint[])
        AS given(id, arm, round, position, seed)
    WHERE given.arm = arm.position
    ORDER BY given.round, given.position
)
INSERT INTO events ({_EVENT})
SELECT id, id, 0, '{SERVICE}', 1, 'state', submitted_at, submitted_at, '{_EVENT_PAYLOAD}'::jsonb FROM experiment
"""  # noqa: S608 - names of this file

_POSTGRESQL = "WITH " + _INSERTS
_POSTGRESQL_CLAIMING = (
    f"WITH claim AS ({_KEY} VALUES (%s, %s, %s, %s, clock_timestamp()) ON CONFLICT DO NOTHING RETURNING 1), "
    + _INSERTS.replace("/* source */", "FROM claim")
)
