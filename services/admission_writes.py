"""Accepted experiments into their tables: any number in one transaction, and in one statement.

On PostgreSQL that is one way to the server and back. Each table's rows go to the driver together, as one JSON document:
it takes lists apart in Python. SQLite's part is `admission_sqlite`.
"""

from collections.abc import Sequence

from pydantic_core import to_json

from services.admission_sqlite import admit_on_sqlite
from services.admissions import ARM_COLUMNS, EVENT_COLUMNS, EXPERIMENT_COLUMNS, QUEUED_PAYLOAD, Admission
from services.database import Database
from services.moves import SERVICE
from services.states import RunState

_EXPERIMENT = ", ".join(EXPERIMENT_COLUMNS)
_ARM = ", ".join(ARM_COLUMNS)
_RUN = "id, experiment_id, arm_key, round, position, seed, state, attempt"


def admit(db: Database, admissions: Sequence[Admission]) -> frozenset[str]:
    """Writes experiments with their tags, arms, runs and first lines of the log, all or none of those that it writes.

    Args:
        db: The database.
        admissions: What to write. One whose key is another submission's, or an earlier one's in this list, is left
            out. Where another with the key is under way, this waits until that one is written or undone.

    Returns:
        Ids of what was written.

    Raises:
        DatabaseUnavailable: The database can't be reached, or stayed locked.
    """
    if not admissions:
        return frozenset()
    return admit_on_sqlite(db, admissions) if db.is_sqlite else _on_postgresql(db, admissions)


def _on_postgresql(db: Database, admissions: Sequence[Admission]) -> frozenset[str]:
    claims = [
        (each.claim.caller, each.claim.key, each.claim.payload_sha256.hex(), each.id)
        for each in admissions
        if each.claim is not None
    ]
    experiments = [(*each.experiment, each.claim is not None) for each in admissions]
    tags = [(each.id, *tag) for each in admissions for tag in each.tags]
    arms = [(*arm, each.id) for each in admissions for arm in each.arms]
    runs = [
        (run.id, each.id, run.arm, run.round, run.position, run.seed)
        for each in admissions
        for run in each.runs
    ]
    # The driver takes a list apart in Python, which for so many columns costs more than the server's work.
    documents = (
        _records(("caller", "key", "payload", "id"), claims),
        _records((*EXPERIMENT_COLUMNS, "is_claimed"), experiments),
        _records(("id", "name", "value"), tags),
        _records((*ARM_COLUMNS, "id"), arms),
        _records(("id", "experiment_id", "arm", "round", "position", "seed"), runs),
    )
    return frozenset(str(identifier) for identifier in db.execute_alone(_POSTGRESQL, documents))


def _records(names: Sequence[str], rows: Sequence[tuple[object, ...]]) -> str:
    # Pydantic's writer, a tenth of the time of Python's; none of the numbers is without an end.
    return to_json([dict(zip(names, row, strict=True)) for row in rows]).decode()


# A foreign key is looked at when the whole statement is done, so that its parts may be in any order. Keys are claimed
# in their own order: two processes that claim some of the same would else wait for each other.
_POSTGRESQL = f"""
WITH claim AS (
    INSERT INTO idempotency_keys (caller, key, payload_sha256, experiment_id, created_at)
    SELECT given.caller, given.key, decode(given.payload, 'hex'), given.id, clock_timestamp()
    FROM json_to_recordset(%s::json) AS given(caller text, key text, payload text, id text)
    ORDER BY given.caller, given.key
    ON CONFLICT DO NOTHING
    RETURNING experiment_id
), experiment AS (
    INSERT INTO experiments ({_EXPERIMENT}, submitted_at, version, attempt)
    SELECT given.id, given.name, given.state, given.description, given.tags::jsonb, given.rounds, given.sample_rate_hz,
        given.spec::jsonb, given.plan::jsonb, given.baseline, given.priority, given.submitted_by, clock_timestamp(),
        1, 0
    FROM json_to_recordset(%s::json) AS given(id text, name text, state text, description text, tags text, rounds int,
        sample_rate_hz float8, spec text, plan text, baseline text, priority int, submitted_by text, is_claimed bool)
    WHERE NOT given.is_claimed OR given.id IN (SELECT experiment_id FROM claim)
    RETURNING id, submitted_at
), tag AS (
    INSERT INTO experiment_tags (experiment_id, name, value)
    SELECT experiment.id, given.name, given.value
    FROM experiment JOIN json_to_recordset(%s::json) AS given(id text, name text, value text) USING (id)
), arm AS (
    INSERT INTO arms ({_ARM}, experiment_id)
    SELECT given.name, given.position, given.strategy, given.world_size, given.width, given.depth, given.ghosts,
        given.dtype, given.settings::jsonb, given.control_of::jsonb, given.cost::jsonb, experiment.id
    FROM experiment
    JOIN json_to_recordset(%s::json) AS given(name text, position int, strategy text, world_size int, width int,
        depth int, ghosts int, dtype text, settings text, control_of text, cost text, id text) USING (id)
    ORDER BY experiment.id, given.position
    RETURNING key, position, experiment_id
), run AS (
    INSERT INTO runs ({_RUN})
    SELECT given.id, arm.experiment_id, arm.key, given.round, given.position, given.seed, '{RunState.QUEUED.value}', 0
    FROM arm
    JOIN json_to_recordset(%s::json)
        AS given(id text, experiment_id text, arm int, round int, position int, seed bigint)
        ON given.experiment_id = arm.experiment_id AND given.arm = arm.position
    ORDER BY arm.experiment_id, given.round, given.position
)
INSERT INTO events ({EVENT_COLUMNS})
SELECT id, id, 0, '{SERVICE}', 1, 'state', submitted_at, submitted_at, '{QUEUED_PAYLOAD}'::jsonb FROM experiment
RETURNING experiment_id
"""  # noqa: S608 - names of this file
