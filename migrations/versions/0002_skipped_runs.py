"""Runs may end as skipped: planned, and not needed"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

NAME = "ck_runs_state_known"
BEFORE = "state IN ('queued', 'running', 'succeeded', 'diverged', 'failed', 'cancelled')"
AFTER = "state IN ('queued', 'running', 'succeeded', 'diverged', 'failed', 'cancelled', 'skipped')"


def upgrade() -> None:
    _allow(AFTER)


def downgrade() -> None:
    op.execute("UPDATE runs SET state = 'cancelled' WHERE state = 'skipped'")
    _allow(BEFORE)


def _allow(states: str) -> None:
    with op.batch_alter_table("runs") as batch:
        batch.drop_constraint(op.f(NAME), type_="check")
        batch.create_check_constraint(op.f(NAME), sa.text(states))
