"""What jobs printed, in bounded parts"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from migrations.types import INSTANT

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "job_logs",
        sa.Column("experiment_id", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("read_characters", sa.BigInteger(), nullable=False),
        sa.Column("first_byte", sa.BigInteger(), nullable=False),
        sa.Column("end_byte", sa.BigInteger(), nullable=False),
        sa.Column("is_complete", sa.Boolean(), nullable=False),
        sa.Column("copied_at", INSTANT, nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiments.id"],
            name=op.f("fk_job_logs_experiment_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("experiment_id", "attempt", name=op.f("pk_job_logs")),
    )
    op.create_table(
        "job_log_parts",
        sa.Column("experiment_id", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("start_byte", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id", "attempt"],
            ["job_logs.experiment_id", "job_logs.attempt"],
            name=op.f("fk_job_log_parts_experiment_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("experiment_id", "attempt", "start_byte", name=op.f("pk_job_log_parts")),
    )


def downgrade() -> None:
    op.drop_table("job_log_parts")
    op.drop_table("job_logs")
