"""Worker groups that outlive an experiment; where the time before an attempt's first step went"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from migrations.types import INSTANT

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

INSTANTS = ("leased_at", "reached_at", "reported_at", "first_step_at")


def upgrade() -> None:
    op.create_table(
        "worker_groups",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("token_hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("experiment_id", sa.String(length=64), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("service_url", sa.Text(), nullable=False),
        sa.Column("software", sa.Text(), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("device", sa.String(length=8), nullable=False),
        sa.Column("cpus_per_rank", sa.Double(), nullable=False),
        sa.Column("made_at", INSTANT, nullable=False),
        sa.Column("seen_at", INSTANT, nullable=False),
        sa.Column("since", INSTANT, nullable=False),
        sa.CheckConstraint(
            "state IN ('working', 'idle', 'offered', 'ending')", name=op.f("ck_worker_groups_state_known")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_worker_groups")),
    )
    op.create_index("ix_worker_groups_state", "worker_groups", ["state"], unique=False)
    op.add_column(
        "experiment_attempts",
        sa.Column("warm", sa.Boolean(), server_default=sa.false(), nullable=False),
    )
    for name in INSTANTS:
        op.add_column("experiment_attempts", sa.Column(name, INSTANT, nullable=True))


def downgrade() -> None:
    for name in reversed(INSTANTS):
        op.drop_column("experiment_attempts", name)
    op.drop_column("experiment_attempts", "warm")
    op.drop_index("ix_worker_groups_state", table_name="worker_groups")
    op.drop_table("worker_groups")
