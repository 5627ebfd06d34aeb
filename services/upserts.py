"""Inserts that leave out what is there already, alike on SQLite and PostgreSQL."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import Row
from sqlalchemy.orm import InstrumentedAttribute, Session

from services.columns import Base
from services.columns import table as of


def insert_new(
    session: Session,
    table: type[Base],
    rows: Sequence[dict[str, Any]],
    returning: Sequence[Any] = (),
) -> Sequence[Row[Any]]:
    """Inserts rows, leaving out those whose key or unique columns exist.

    Args:
        session: A write session.
        table: Where.
        rows: Values by column; all with the same columns.
        returning: Columns to give back of the rows that are new; none takes the primary key.

    Returns:
        One row for each that is new.
    """
    if not rows:
        return []
    session.flush()
    connection = session.connection()
    statement = _insert(table, connection.dialect.name, tuple(returning))
    # Past the ORM, whose bookkeeping for rows that nobody holds costs more than the insert.
    return connection.execute(statement, list(rows)).all()


@cache
def _insert(table: type[Base], dialect: str, returning: tuple[InstrumentedAttribute[Any], ...]) -> Any:
    columns = [of(table).c[column.key] for column in returning] or list(of(table).primary_key)
    # Not at the top: only one of the two is the service's own, and the other would cost it a twentieth of its start.
    if dialect == "sqlite":
        from sqlalchemy.dialects import sqlite

        return sqlite.insert(of(table)).on_conflict_do_nothing().returning(*columns)
    from sqlalchemy.dialects import postgresql

    return postgresql.insert(of(table)).on_conflict_do_nothing().returning(*columns)
