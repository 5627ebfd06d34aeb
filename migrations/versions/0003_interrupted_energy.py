"""What attempts used that were cut off, and what must be said of it"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    with op.batch_alter_table("attempts") as batch:
        batch.add_column(sa.Column("energy_interrupted_mj", sa.Double(), nullable=True))
        batch.add_column(sa.Column("energy_reason", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("attempts") as batch:
        batch.drop_column("energy_reason")
        batch.drop_column("energy_interrupted_mj")
