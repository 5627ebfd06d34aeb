"""Whose turn it is in the queue; what was given back to it rests no more"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from migrations.types import INSTANT

revision: str = "0010"
down_revision: str | None = "0009"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

QUEUE = "ix_experiments_queue"
BY_CALLER = ["state", "priority", "submitted_by", "submitted_at", "id"]
BY_ID = ["state", "priority", "id"]


def upgrade() -> None:
    op.create_table(
        "queue_turns",
        sa.Column("caller", sa.String(length=64), nullable=False),
        sa.Column("turn", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("caller", name=op.f("pk_queue_turns")),
    )
    op.drop_column("experiments", "eligible_at")
    op.drop_index(QUEUE, table_name="experiments")
    op.create_index(QUEUE, "experiments", BY_CALLER, unique=False)


def downgrade() -> None:
    op.drop_index(QUEUE, table_name="experiments")
    op.create_index(QUEUE, "experiments", BY_ID, unique=False)
    op.add_column("experiments", sa.Column("eligible_at", INSTANT, nullable=True))
    op.drop_table("queue_turns")
