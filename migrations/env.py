"""Runs Alembic on the connection that `services.schema` holds; there is no ini file and no URL here."""

from typing import Any, Literal

from alembic import context
from sqlalchemy import Connection

from services.columns import Base, Json, Key
from services.database import UtcDateTime
from services.tables import Experiment

_METADATA = Base.metadata
assert Experiment.__tablename__ in _METADATA.tables, "tables are known once they are imported"


def _short(kind: str, item: Any, _context: object) -> str | Literal[False]:
    """Types of new revisions by their names in `migrations.types`."""
    if kind != "type":
        return False
    if isinstance(item, UtcDateTime):
        return "INSTANT"
    return {id(Json): "JSON", id(Key): "KEY"}.get(id(item), False)


def _set_foreign_keys(connection: Connection, state: Literal["ON", "OFF"]) -> None:
    driver = connection.connection.driver_connection
    assert driver is not None
    driver.execute(f"PRAGMA foreign_keys = {state}")


def run(connection: Connection) -> None:
    """All pending revisions in one transaction."""
    sqlite = connection.dialect.name == "sqlite"
    if sqlite:
        # Outside a transaction, or SQLite ignores it. Alembic alters a table by copying it and dropping the
        # old one; with foreign keys on, dropping a parent deletes the children's rows.
        connection.rollback()
        _set_foreign_keys(connection, "OFF")
    try:
        context.configure(
            connection=connection,
            target_metadata=_METADATA,
            render_as_batch=True,
            transactional_ddl=True,
            compare_type=True,
            render_item=_short,
        )
        with context.begin_transaction():
            context.run_migrations()
            if sqlite:
                broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
                if broken:
                    raise RuntimeError(f"the migration would leave rows without their parents: {broken[:5]}")
    finally:
        if sqlite:
            connection.rollback()
            _set_foreign_keys(connection, "ON")


run(context.config.attributes["connection"])
