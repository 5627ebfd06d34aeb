"""Metric points into their table, as fast as each database takes them."""

from collections.abc import Iterable, Sequence

from sqlalchemy.orm import Session

MetricRow = tuple[int, str, int, int, int, float | None, str | None, float | None, float | None]
"""run_key, name, attempt, step, seq, value, non_finite, energy_mj, training_s."""

_COLUMNS = "run_key, name, attempt, step, seq, value, non_finite, energy_mj, training_s"
_SQLITE = f"INSERT OR IGNORE INTO metrics ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
# One statement with nine arrays, planned once: several times faster than a statement for each row.
_POSTGRESQL = (
    f"INSERT INTO metrics ({_COLUMNS}) SELECT * FROM unnest("  # noqa: S608
    "%s::bigint[], %s::text[], %s::smallint[], %s::bigint[], %s::bigint[], "
    "%s::float8[], %s::text[], %s::float8[], %s::float8[]) ON CONFLICT DO NOTHING"
)


def insert_metrics(session: Session, rows: Sequence[MetricRow]) -> None:
    """Inserts points; one that is there already (same run, name, attempt, step, event) is left as it is."""
    if not rows:
        return
    connection = session.connection()
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(_SQLITE, list(rows))
        return
    connection.exec_driver_sql(_POSTGRESQL, tuple(map(_array, zip(*rows, strict=True))))


def _array(column: Iterable[object]) -> str:
    """PostgreSQL's own notation of an array; the driver's dump of lists costs more than the rest of the insert.

    Text is quoted, also since an unquoted `null` is none. It can hold no quote itself: metric names are words.
    """
    elements = [
        "NULL" if value is None else f'"{value}"' if isinstance(value, str) else repr(value)
        for value in column
    ]
    return "{" + ",".join(elements) + "}"
