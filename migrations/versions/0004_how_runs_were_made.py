"""Runs say whether they were compiled and what carried their exchanges"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    with op.batch_alter_table("runs") as batch:
        batch.add_column(sa.Column("compiled", sa.Boolean(), nullable=True))
        batch.add_column(sa.Column("exchange", sa.String(length=32), nullable=True))
        batch.add_column(sa.Column("exchange_reason", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("runs") as batch:
        batch.drop_column("exchange_reason")
        batch.drop_column("exchange")
        batch.drop_column("compiled")
