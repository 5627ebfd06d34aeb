"""Column types and naming that all tables share, so that SQLite and PostgreSQL hold the same rows."""

from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, Integer, LargeBinary, MetaData, String, Table
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator, TypeEngine


class JsonDocument(TypeDecorator[Any]):
    """JSON text on SQLite, JSONB on PostgreSQL; Python's None is SQL's NULL."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """The type on one kind of database."""
        if dialect.name != "postgresql":
            return super().load_dialect_impl(dialect)
        # Not at the top: a service on SQLite would import all of PostgreSQL's dialect for one name.
        from sqlalchemy.dialects.postgresql import JSONB

        return dialect.type_descriptor(JSONB(none_as_null=True))


Json = JsonDocument()
"""Any JSON value."""

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
