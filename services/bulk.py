"""Blocks of metric points into their table, past the layers that would cost more than the insert."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

BlockRow = tuple[int, int, int, str, int, int, bytes]
"""run_key, attempt, seq, source, first_step, point_count, points."""

_COLUMNS = "run_key, attempt, seq, source, first_step, point_count, points"
_SQLITE = f"INSERT OR IGNORE INTO metric_blocks ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
_POSTGRESQL = (
    f"INSERT INTO metric_blocks ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s)"  # noqa: S608
    " ON CONFLICT DO NOTHING"
)


def insert_blocks(session: Session, rows: Sequence[BlockRow]) -> None:
    """Inserts blocks; one that is there already (same run, attempt, event) is left as it is."""
    if not rows:
        return
    connection = session.connection()
    statement = _SQLITE if connection.dialect.name == "sqlite" else _POSTGRESQL
    connection.exec_driver_sql(statement, list(rows))
