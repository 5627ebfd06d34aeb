"""Metric points in blocks, one for each event"""

import math
import struct
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from alembic import op

from migrations.types import KEY

revision: str = "0008"
down_revision: str | None = "0007"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

VERSION = 1
CODES = ("", "B", "H", "I", "Q")
SIZES = (0, 1, 2, 4, 8)
ENERGY, SECONDS = 1 << 6, 1 << 7
NO_SOURCE = "rank-0"
"""Who told a point whose line in the log is gone; no reader asks."""

POINTS = sa.table(
    "metrics",
    *map(sa.column, ("run_key", "name", "attempt", "step", "seq", "value", "non_finite")),
    *map(sa.column, ("energy_mj", "training_s")),
)
BLOCKS = sa.table(
    "metric_blocks",
    *map(sa.column, ("run_key", "attempt", "seq", "source", "first_step", "point_count", "points")),
)
Point = tuple[str, int, float, float | None, float | None]
"""Name, step, value, energy in millijoules, training seconds."""


def upgrade() -> None:
    op.create_table(
        "metric_blocks",
        sa.Column("run_key", KEY, nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.String(length=64), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("point_count", sa.Integer(), nullable=False),
        sa.Column("points", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_key"], ["runs.key"], name=op.f("fk_metric_blocks_run_key"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_key", "attempt", "seq", "source", name=op.f("pk_metric_blocks")),
        sqlite_with_rowid=False,
    )
    connection = op.get_bind()
    for run_key in _runs(connection, POINTS):
        blocks = list(_blocks_of(connection, run_key))
        connection.execute(sa.insert(BLOCKS), blocks)
    op.drop_table("metrics")


def downgrade() -> None:
    op.create_table(
        "metrics",
        sa.Column("run_key", KEY, nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("non_finite", sa.String(length=4), nullable=True),
        sa.Column("energy_mj", sa.Double(), nullable=True),
        sa.Column("training_s", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_key"], ["runs.key"], name=op.f("fk_metrics_run_key"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_key", "name", "attempt", "step", "seq", name=op.f("pk_metrics")),
        sqlite_with_rowid=False,
    )
    connection = op.get_bind()
    for run_key in _runs(connection, BLOCKS):
        connection.execute(sa.insert(POINTS), _points_of(connection, run_key))
    op.drop_table("metric_blocks")


def _runs(connection: sa.Connection, table: sa.TableClause) -> Sequence[int]:
    return connection.scalars(sa.select(table.c.run_key).distinct().order_by(table.c.run_key)).all()


def _blocks_of(connection: sa.Connection, run_key: int) -> Iterator[dict[str, Any]]:
    """A run's points, those of one event together; the log knows who told them."""
    log = connection.execute(
        sa.text(
            "SELECT events.attempt, events.seq, min(events.source) FROM events "
            "JOIN runs ON runs.id = events.subject_id "
            "WHERE runs.key = :run_key AND events.kind = 'metrics' GROUP BY events.attempt, events.seq"
        ),
        {"run_key": run_key},
    )
    sources = {(attempt, seq): source for attempt, seq, source in log}
    columns = POINTS.c
    rows = connection.execute(
        sa.select(
            columns.attempt,
            columns.seq,
            columns.name,
            columns.step,
            columns.value,
            columns.non_finite,
            columns.energy_mj,
            columns.training_s,
        )
        .where(columns.run_key == run_key)
        .order_by(columns.attempt, columns.seq, columns.name, columns.step)
    ).all()
    for (attempt, seq), found in groupby(rows, key=itemgetter(0, 1)):
        points = [
            (name, step, value if strange is None else float(strange), energy_mj, training_s)
            for _, _, name, step, value, strange, energy_mj, training_s in found
        ]
        first_step = min(step for _, step, *_ in points)
        yield {
            "run_key": run_key,
            "attempt": attempt,
            "seq": seq,
            "source": sources.get((attempt, seq), NO_SOURCE),
            "first_step": first_step,
            "point_count": len(points),
            "points": _packed(points, first_step),
        }


def _points_of(connection: sa.Connection, run_key: int) -> list[dict[str, Any]]:
    """A run's points as rows; of two that an event told of one metric and step the first, as an earlier version had."""
    columns = BLOCKS.c
    rows = connection.execute(
        sa.select(columns.attempt, columns.seq, columns.first_step, columns.points)
        .where(columns.run_key == run_key)
        .order_by(columns.attempt, columns.seq, columns.source)
    )
    kept: dict[tuple[str, int, int, int], dict[str, Any]] = {}
    for attempt, seq, first_step, packed in rows:
        for name, step, value, energy_mj, training_s in _unpacked(bytes(packed), first_step):
            row = {"run_key": run_key, "name": name, "attempt": attempt, "step": step, "seq": seq}
            row |= {"value": value if math.isfinite(value) else None}
            row |= {"non_finite": None if math.isfinite(value) else str(value)}
            row |= {"energy_mj": energy_mj, "training_s": training_s}
            kept.setdefault((name, attempt, step, seq), row)
    return list(kept.values())


def _packed(points: Sequence[Point], first_step: int) -> bytes:
    """See `services/metric_blocks.py`, as it was at this revision."""
    names = {name: place for place, name in enumerate(dict.fromkeys(point[0] for point in points))}
    offsets = [step - first_step for _, step, *_ in points]
    step_code, name_code = _code(max(offsets)), _code(len(names) - 1)
    columns = [
        _column(CODES[step_code], offsets),
        _column(CODES[name_code], [names[each[0]] for each in points]),
    ]
    columns.append(_column("d", [value for _, _, value, *_ in points]))
    widths = step_code | name_code << 3
    energies, seconds = [point[3] for point in points], [point[4] for point in points]
    for figures, flag in ((energies, ENERGY), (seconds, SECONDS)):
        if any(figure is not None for figure in figures):
            columns.append(_column("d", [math.nan if figure is None else figure for figure in figures]))
            widths |= flag
    return bytes((VERSION, widths)) + ",".join(names).encode() + b"\n" + b"".join(columns)


def _unpacked(packed: bytes, first_step: int) -> Iterator[Point]:
    if packed[0] != VERSION:
        raise RuntimeError(f"metric block of version {packed[0]}; revision {revision} knows {VERSION}")
    widths, end = packed[1], packed.index(b"\n", 2)
    names = packed[2:end].decode().split(",")
    codes = [CODES[widths & 7], CODES[widths >> 3 & 7], "d"]
    codes += ["d" if widths & flag else "" for flag in (ENERGY, SECONDS)]
    point_bytes = sum(struct.calcsize(f"<{code}") for code in codes)
    place, count = end + 1, (len(packed) - end - 1) // point_bytes
    columns: list[Sequence[Any]] = []
    for code in codes:
        columns.append(struct.unpack_from(f"<{count}{code}", packed, place) if code else (None,) * count)
        place += count * struct.calcsize(f"<{code}")
    for offset, name, value, energy_mj, training_s in zip(*columns, strict=True):
        yield names[name or 0], first_step + (offset or 0), value, _known(energy_mj), _known(training_s)


def _column(code: str, figures: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(figures)}{code}", *figures) if code else b""


def _code(largest: int) -> int:
    return next(code for code, size in enumerate(SIZES) if largest < 1 << 8 * size)


def _known(figure: float | None) -> float | None:
    return None if figure is None or math.isnan(figure) else figure
