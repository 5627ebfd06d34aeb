"""Column types and naming that all tables share, so that SQLite and PostgreSQL hold the same rows."""

from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, Integer, LargeBinary, MetaData, String, Table
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase

Json = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
"""JSON text on SQLite, JSONB on PostgreSQL; Python's None is SQL's NULL."""

Key = BigInteger().with_variant(Integer(), "sqlite")
"""A counted key. SQLite counts by itself only in a column that is declared INTEGER."""

Id = String(64)
"""An experiment's or a run's id."""

Blob = LargeBinary()
"""Packed bytes."""


class Base(DeclarativeBase):
    """Common root of the tables; constraints get predictable names so that migrations can name them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {dict[str, Any]: Json, list[str]: Json}  # noqa: RUF012 - read by SQLAlchemy


def one_of(column: str, states: type[StrEnum]) -> CheckConstraint:
    """A constraint that a column holds one of the states."""
    values = ", ".join(f"'{state.value}'" for state in states)
    return CheckConstraint(f"{column} IN ({values})", name=f"{column}_known")


def table(model: type[Base]) -> Table:
    """The table under a model, for statements that need none of the ORM's bookkeeping."""
    found = model.__table__
    assert isinstance(found, Table), "every model here is mapped to a table"
    return found
