"""Which revision the tables are at and which is the newest, without Alembic, whose import every start would pay for."""

import re
from pathlib import Path

from sqlalchemy import Connection, text

import migrations

_STEP = re.compile(r"(\d{4})_\w+\.py")


def folder() -> Path:
    """Where the migrations are."""
    return Path(migrations.__file__).parent


def newest() -> str:
    """The newest revision that this version knows; files are named after theirs, in order."""
    return max(
        found[1] for file in (folder() / "versions").iterdir() if (found := _STEP.fullmatch(file.name))
    )


def current(connection: Connection) -> str | None:
    """The tables' revision; None before the first migration."""
    if not connection.dialect.has_table(connection, "alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
