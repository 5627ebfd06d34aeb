"""Limits on a board's clocks"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0007"
down_revision: str | None = "0006"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

LIMITS = ("clock_limit_mhz", "memory_clock_limit_mhz")


def upgrade() -> None:
    for name in LIMITS:
        op.add_column("devices", sa.Column(name, sa.Double(), nullable=True))


def downgrade() -> None:
    for name in reversed(LIMITS):
        op.drop_column("devices", name)
