"""Joined blocks of power readings, with figures of their parts"""

import zlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from alembic import op

from migrations.types import INSTANT

revision: str = "0009"
down_revision: str | None = "0008"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

LONGEST_BLOCK_S = 60.0
"""The longest block that an earlier version looks for."""
VERSION = 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

BLOCKS = sa.table(
    "power_samples",
    *map(sa.column, ("key", "device_key", "experiment_attempt", "method")),
    sa.column("started_at", INSTANT),
    sa.column("ended_at", INSTANT),
    *map(sa.column, ("started_monotonic_s", "ended_monotonic_s", "sample_count", "missing_count")),
    *map(sa.column, ("least_mw", "mean_mw", "greatest_mw", "outline", "parts", "readings")),
)


def upgrade() -> None:
    columns = [sa.Column(name, sa.LargeBinary(), nullable=True) for name in ("outline", "parts")]
    if op.get_bind().dialect.name == "sqlite":
        # Before the readings: SQLite walks through all of a row to what stands behind them.
        with op.batch_alter_table("power_samples", recreate="always") as batch:
            for column in columns:
                batch.add_column(column, insert_before="readings")
    else:
        for column in columns:
            op.add_column("power_samples", column)
    op.create_index(
        "ix_power_samples_unjoined",
        "power_samples",
        ["device_key", "experiment_attempt", "started_monotonic_s"],
        unique=False,
        sqlite_where=sa.text("parts IS NULL"),
        postgresql_where=sa.text("parts IS NULL"),
    )


def downgrade() -> None:
    connection = op.get_bind()
    keys = connection.scalars(
        sa.select(BLOCKS.c.key).where(BLOCKS.c.parts.is_not(None)).order_by(BLOCKS.c.key)
    ).all()
    for key in keys:
        _cut(connection, key)
    op.drop_index("ix_power_samples_unjoined", table_name="power_samples")
    with op.batch_alter_table("power_samples") as batch:
        batch.drop_column("parts")
        batch.drop_column("outline")


def _cut(connection: sa.Connection, key: int) -> None:
    """A joined block as ones that an earlier version finds."""
    columns = BLOCKS.c
    device_key, attempt, method, packed = connection.execute(
        sa.select(columns.device_key, columns.experiment_attempt, columns.method, columns.readings).where(
            columns.key == key
        )
    ).one()
    owner = {"device_key": device_key, "experiment_attempt": attempt, "method": method}
    blocks = [owner | block for block in _blocks(bytes(packed))]
    connection.execute(sa.delete(BLOCKS).where(columns.key == key))
    connection.execute(sa.insert(BLOCKS), blocks)


def _blocks(packed: bytes) -> Iterator[dict[str, Any]]:
    """See `services/power_blocks.py`, as it was at this revision; the readings are in order of the monotonic clock."""
    if packed[0] != VERSION:
        raise RuntimeError(f"power block of version {packed[0]}; revision {revision} knows {VERSION}")
    # Not at the top: a service's first start would import it for an upgrade that needs none of it.
    import numpy as np

    body = zlib.decompress(packed[2:])
    columns = np.frombuffer(body, "<i8").reshape(4 if packed[1] else 3, -1)
    at_us, times, power_mw = columns[0], columns[1].view("<f8"), columns[2].view("<f8")
    first = 0
    while first < len(times):
        last = int(np.searchsorted(times, times[first] + LONGEST_BLOCK_S, side="right"))
        known = power_mw[first:last][~np.isnan(power_mw[first:last])]
        yield {
            "started_at": _moment(int(at_us[first:last].min())),
            "ended_at": _moment(int(at_us[first:last].max())),
            "started_monotonic_s": float(times[first]),
            "ended_monotonic_s": float(times[last - 1]),
            "sample_count": last - first,
            "missing_count": last - first - len(known),
            "least_mw": float(known.min()) if len(known) else None,
            "mean_mw": float(known.mean()) if len(known) else None,
            "greatest_mw": float(known.max()) if len(known) else None,
            "readings": packed[:2] + zlib.compress(columns[:, first:last].tobytes(), level=1),
        }
        first = last


def _moment(at_us: int) -> datetime:
    return EPOCH + timedelta(microseconds=at_us)
