"""Column types as the revisions write them; they never change, even when the tables' types move on."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

INSTANT = sa.DateTime(timezone=True)
"""`timestamptz`; UTC text on SQLite."""

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
"""JSONB; text on SQLite."""

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""A counted key."""
