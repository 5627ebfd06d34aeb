"""Accepted experiments into SQLite's tables, any number in one statement.

The driver gives Python's lock (the GIL) back for each statement, and takes it again behind whatever the event loop
computes meanwhile: a transaction of seven statements waited for that seven times, with locks on the database held. A
view of the connection's own takes a row per experiment, and its trigger fills all tables: the whole transaction, disk
and all, runs beside Python. Where one of them has an Idempotency-Key, a transaction around it also looks which were
written.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from pydantic_core import to_json

from services.admissions import ARM_COLUMNS, EVENT_COLUMNS, EXPERIMENT_COLUMNS, QUEUED_PAYLOAD, Admission
from services.database import Database
from services.moves import SERVICE
from services.states import RunState

_GIVEN = ("claimed_by", "claimed_key", "claimed_sha256", "tag_rows", "arm_rows", "run_rows", "moment")
"""What a row of the view has besides `EXPERIMENT_COLUMNS`."""


def admit_on_sqlite(db: Database, admissions: Sequence[Admission]) -> frozenset[str]:
    """Does what `admission_writes.admit` says."""
    # SQLAlchemy's notation of an instant in SQLite.
    moment = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    # Values, not a document: SQLite reads a number in JSON less exactly than it is given one.
    values = [value for each in admissions for value in _row(each, moment)]
    statement = _insert(len(admissions))
    if all(each.claim is None for each in admissions):
        with db.cursor(OWN, in_transaction=False) as cursor:
            cursor.execute(statement, values)
        return frozenset(each.id for each in admissions)
    with db.cursor(OWN) as cursor:
        cursor.execute(statement, values)
        cursor.execute(_WRITTEN, (to_json([each.id for each in admissions]).decode(),))
        return frozenset(identifier for (identifier,) in cursor.fetchall())


def _row(admission: Admission, moment: str) -> tuple[object, ...]:
    claim = admission.claim
    claimed = (None, None, None) if claim is None else (claim.caller, claim.key, claim.payload_sha256)
    runs = [(run.id, admission.arms[run.arm][0], run.round, run.position, run.seed) for run in admission.runs]
    # Pydantic's writer, a tenth of the time of Python's; none of the numbers is without an end.
    documents = (to_json(rows).decode() for rows in (admission.tags, admission.arms, runs))
    return (*admission.experiment, *claimed, *documents, moment)


def _insert(count: int) -> str:
    row = f"({', '.join('?' * (len(EXPERIMENT_COLUMNS) + len(_GIVEN)))})"
    return f"INSERT INTO {_VIEW} VALUES {', '.join([row] * count)}"  # noqa: S608 - this file's


def _parts(first: int, last: int) -> str:
    return ", ".join(f"json_extract(value, '$[{position}]')" for position in range(first, last + 1))


_VIEW = "temp.admission"
_WRITTEN = "SELECT id FROM experiments WHERE id IN (SELECT value FROM json_each(?))"
_EXPERIMENT = ", ".join(EXPERIMENT_COLUMNS)
_IS_WRITTEN = "EXISTS (SELECT 1 FROM experiments WHERE id = NEW.id)"
OWN = (
    "CREATE TEMP VIEW IF NOT EXISTS admission AS SELECT "
    + ", ".join(f"NULL AS {name}" for name in (*EXPERIMENT_COLUMNS, *_GIVEN)),
    f"""
CREATE TEMP TRIGGER IF NOT EXISTS admitted INSTEAD OF INSERT ON admission BEGIN
    INSERT INTO idempotency_keys (caller, key, payload_sha256, experiment_id, created_at)
    SELECT NEW.claimed_by, NEW.claimed_key, NEW.claimed_sha256, NEW.id, NEW.moment WHERE NEW.claimed_key IS NOT NULL
    ON CONFLICT DO NOTHING;

    INSERT INTO experiments ({_EXPERIMENT}, submitted_at, version, attempt)
    SELECT {", ".join(f"NEW.{name}" for name in EXPERIMENT_COLUMNS)}, NEW.moment, 1, 0
    WHERE NEW.claimed_key IS NULL OR EXISTS (
        SELECT 1 FROM idempotency_keys
        WHERE caller = NEW.claimed_by AND key = NEW.claimed_key AND experiment_id = NEW.id
    );

    INSERT INTO experiment_tags (experiment_id, name, value)
    SELECT NEW.id, {_parts(0, 1)} FROM json_each(NEW.tag_rows) WHERE {_IS_WRITTEN};

    INSERT INTO arms (experiment_id, {", ".join(ARM_COLUMNS)})
    SELECT NEW.id, {_parts(0, len(ARM_COLUMNS) - 1)} FROM json_each(NEW.arm_rows) WHERE {_IS_WRITTEN};

    INSERT INTO runs (id, experiment_id, arm_key, round, position, seed, state, attempt)
    SELECT json_extract(value, '$[0]'), NEW.id,
        (SELECT key FROM arms WHERE experiment_id = NEW.id AND name = json_extract(value, '$[1]')),
        {_parts(2, 4)}, '{RunState.QUEUED.value}', 0
    FROM json_each(NEW.run_rows) WHERE {_IS_WRITTEN};

    INSERT INTO events ({EVENT_COLUMNS})
    SELECT NEW.id, NEW.id, 0, '{SERVICE}', 1, 'state', NEW.moment, NEW.moment, '{QUEUED_PAYLOAD}' WHERE {_IS_WRITTEN};
END""",  # noqa: S608 - names of this project
)
"""The view and its trigger."""
