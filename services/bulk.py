"""Blocks of metric points into their table, past the layers that would cost more than the insert."""

from collections.abc import Iterable, Sequence

from sqlalchemy.orm import Session

BlockRow = tuple[int, int, int, str, int, int, bytes]
"""run_key, attempt, seq, source, first_step, point_count, points."""

_COLUMNS = "run_key, attempt, seq, source, first_step, point_count, points"
_SQLITE = f"INSERT OR IGNORE INTO metric_blocks ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
# Arrays in one statement of few parameters: the driver and the server each keep it, whatever the number of rows.
_POSTGRESQL = (
    f"INSERT INTO metric_blocks ({_COLUMNS}) SELECT * FROM unnest("  # noqa: S608
    "%s::bigint[], %s::smallint[], %s::bigint[], %s::text[], %s::bigint[], %s::integer[], %s::bytea[]"
    ") ON CONFLICT DO NOTHING"
)


def insert_blocks(session: Session, rows: Sequence[BlockRow]) -> None:
    """Inserts blocks; one that is there already (same run, attempt, event) is left as it is."""
    if not rows:
        return
    connection = session.connection()
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(_SQLITE, list(rows))
        return
    connection.exec_driver_sql(_POSTGRESQL, tuple(map(_array, zip(*rows, strict=True))))


def _array(column: Iterable[int | str | bytes]) -> str:
    """PostgreSQL's own notation of an array, which the driver takes as it is.

    A source holds letters, digits and `._:-` only, bytes are written as hexadecimal: nothing needs escaping.
    """
    elements = [
        f'"\\\\x{value.hex()}"'
        if isinstance(value, bytes)
        else f'"{value}"'
        if isinstance(value, str)
        else str(value)
        for value in column
    ]
    return "{" + ",".join(elements) + "}"
