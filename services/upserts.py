"""Inserts that leave out what is there already, alike on SQLite and PostgreSQL."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Insert, Row, inspect
from sqlalchemy.orm import Session

from services.columns import Base


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
    columns = returning or tuple(inspect(table).primary_key)
    statement = _insert(table, session.get_bind().dialect.name).returning(*columns)
    return session.execute(statement, list(rows)).all()


def _insert(table: type[Base], dialect: str) -> Insert:
    # Not at the top: only one of the two is the service's own, and the other would cost it a twentieth of its start.
    if dialect == "sqlite":
        from sqlalchemy.dialects import sqlite

        return sqlite.insert(table).on_conflict_do_nothing()
    from sqlalchemy.dialects import postgresql

    return postgresql.insert(table).on_conflict_do_nothing()
