"""Inserts that leave out what is there already, alike on SQLite and PostgreSQL."""

import json
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Row, inspect
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningInsert

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
        rows: Values by column; all with the same columns, of types that JSON has, or instants.
        returning: Columns to give back of the rows that are new; none takes the primary key.

    Returns:
        One row for each that is new.
    """
    if not rows:
        return []
    session.flush()
    connection = session.connection()
    columns = tuple(column.key for column in returning or inspect(table).primary_key)
    # Past the ORM, whose bookkeeping for rows that nobody holds costs more than the insert.
    if connection.dialect.name == "sqlite":
        return connection.execute(_sqlite(table, columns), list(rows)).all()
    statement = _postgresql(table, tuple(rows[0]), columns)
    return connection.exec_driver_sql(statement, (json.dumps(rows, default=_instant),)).all()


# Both statements are made once: making one costs as much as running it.
@cache
def _sqlite(table: type[Base], returning: tuple[str, ...]) -> ReturningInsert[Any]:
    # Not at the top, like the other: only one of the two is the service's own, and importing it costs a twentieth of
    # the start.
    from sqlalchemy.dialects import sqlite

    columns = of(table).c
    return sqlite.insert(of(table)).on_conflict_do_nothing().returning(*[columns[name] for name in returning])


@cache
def _postgresql(table: type[Base], names: tuple[str, ...], returning: tuple[str, ...]) -> str:
    """All rows in one parameter: of a statement with one for each value neither driver nor server keeps anything."""
    from sqlalchemy.dialects import postgresql

    dialect, columns = postgresql.dialect(), of(table).c  # type: ignore[no-untyped-call]
    unnamed = [column.name for column in columns if column.name not in names and column.default is not None]
    assert not unnamed, (
        f"rows for {table.__tablename__} lack {unnamed}, whose defaults are set by SQLAlchemy only"
    )
    given = ", ".join(f"{name} {columns[name].type.compile(dialect=dialect)}" for name in names)
    return (
        f"INSERT INTO {table.__tablename__} ({', '.join(names)}) "  # noqa: S608 - names of tables and columns
        f"SELECT {', '.join(names)} FROM jsonb_to_recordset(%s::jsonb) AS given ({given}) "
        f"ON CONFLICT DO NOTHING RETURNING {', '.join(returning)}"
    )


def _instant(value: object) -> str:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError(
            f"{value!r} is no JSON and no time with a zone; give an aware time, such as datetime.now(UTC)"
        )
    return value.isoformat()
