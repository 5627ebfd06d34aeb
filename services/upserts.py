"""Inserts that leave out what is there already, alike on SQLite and PostgreSQL."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, inspect
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
    if session.get_bind().dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite import insert
    else:
        from sqlalchemy.dialects.postgresql import insert
    columns = returning or tuple(inspect(table).primary_key)
    statement = insert(table).on_conflict_do_nothing().returning(*columns)
    return session.execute(statement, list(rows)).all()
