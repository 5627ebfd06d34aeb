"""Small blocks of power readings become long ones: what a sampler sends is two seconds, what a plot shows is hours.

A joined block holds the same readings, to the bit, and the figures of its parts (`power_parts.py`). Joining is one
short transaction each: whoever reads sees the blocks as they came or the one that they became, and a process that
dies leaves one or the other. Two processes that join the same blocks collide on the first of them, and one lets go.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from sqlalchemy import delete, func, or_, select, update

from services.database import Database
from services.mishaps import Mishaps
from services.power_blocks import joined, unpack
from services.power_rows import LONGEST_JOINED_S, joined_columns
from services.states import TERMINAL_STATES
from services.tables import Device, Experiment, PowerSample

MOST_READINGS = 8_192
"""In a joined block: a plot of a few minutes unpacks all of it."""
MOST_BLOCKS = 500
"""That become one."""
LOOKED_AT = 4_000
"""Blocks of a device that one look takes in. More than there can be without one that is full: three methods, each with
and without a known power, have six open at a time."""
JOINED_AT_ONCE = 20
"""Joined blocks made in one pass, so that a backlog takes a small share of a core."""


class Series(NamedTuple):
    """The power of one device during one attempt of an experiment."""

    device_key: int
    experiment_attempt: int
    has_ended: bool
    """Whether its experiment has: then nothing more is waited for."""


class Block(NamedTuple):
    """A block as it came, without its readings."""

    key: int
    method: str
    started_s: float
    ended_s: float
    samples: int
    mean_mw: float | None


@dataclass
class Group:
    """Blocks that become one."""

    started_s: float
    keys: list[int] = field(default_factory=list)
    samples: int = 0

    def takes(self, block: Block) -> bool:
        """Whether it is still short enough with another."""
        return (
            block.ended_s - self.started_s <= LONGEST_JOINED_S
            and self.samples + block.samples <= MOST_READINGS
            and len(self.keys) < MOST_BLOCKS
        )


def join_all(db: Database, mishaps: Mishaps, most: int = JOINED_AT_ONCE) -> int:
    """Joins blocks that are complete: as long as one may be, or of an experiment that has ended.

    Args:
        db: The database.
        mishaps: Keeps what goes wrong with one device from the others.
        most: How many joined blocks are made at most.

    Returns:
        How many were.
    """
    found = _series(db)
    # Two processes that begin with different ones rarely collide.
    random.shuffle(found)
    made = 0
    for series in found:
        if made >= most:
            break
        part = f"joining the power of device {series.device_key}"
        made += mishaps.attempt(part, partial(_join, db, series, most - made), 0)
    return made


def groups_of(blocks: Iterable[Block], *, has_ended: bool) -> Iterator[Group]:
    """Blocks that can become one, as soon as no later one can join them.

    Blocks without any known power stay among themselves: when a device's power was known last is asked of whole blocks.

    Args:
        blocks: In order of their start.
        has_ended: Whether no more are to come.
    """
    open_groups: dict[tuple[str, bool], Group] = {}
    newest_s = 0.0
    for block in blocks:
        newest_s = block.started_s
        kind = block.method, block.mean_mw is None
        group = open_groups.get(kind)
        if group is not None and not group.takes(block):
            yield group
            group = None
        if group is None:
            group = open_groups[kind] = Group(block.started_s)
        group.keys.append(block.key)
        group.samples += block.samples
    for group in open_groups.values():
        if has_ended or newest_s - group.started_s > LONGEST_JOINED_S:
            yield group


def _series(db: Database) -> list[Series]:
    """Those of which something may be complete, as an index alone can tell."""
    started_s = PowerSample.started_monotonic_s
    has_ended = Experiment.state.in_(TERMINAL_STATES)
    with db.read() as session:
        rows = session.execute(
            select(PowerSample.device_key, PowerSample.experiment_attempt, has_ended)
            .join(Device, Device.key == PowerSample.device_key)
            .join(Experiment, Experiment.id == Device.experiment_id)
            .where(PowerSample.parts.is_(None), Experiment.delete_requested_at.is_(None))
            .group_by(PowerSample.device_key, PowerSample.experiment_attempt, Experiment.state)
            .having(
                or_(
                    has_ended,
                    func.max(started_s) - func.min(started_s) > LONGEST_JOINED_S,
                    func.count() > MOST_BLOCKS,
                )
            )
        )
        return [Series(device_key, attempt, bool(ended)) for device_key, attempt, ended in rows]


def _join(db: Database, series: Series, most: int) -> int:
    with db.read() as session:
        rows = session.execute(
            select(
                PowerSample.key,
                PowerSample.method,
                PowerSample.started_monotonic_s,
                PowerSample.ended_monotonic_s,
                PowerSample.sample_count,
                PowerSample.mean_mw,
            )
            .where(
                PowerSample.device_key == series.device_key,
                PowerSample.experiment_attempt == series.experiment_attempt,
                PowerSample.parts.is_(None),
            )
            .order_by(PowerSample.started_monotonic_s, PowerSample.key)
            .limit(LOOKED_AT)
        ).all()
    has_ended = series.has_ended and len(rows) < LOOKED_AT
    made = 0
    for group in groups_of(map(Block._make, rows), has_ended=has_ended):
        if made >= most:
            break
        made += join_blocks(db, group.keys)
    return made


def join_blocks(db: Database, keys: list[int]) -> bool:
    """Makes one block of some, in place of the first.

    The readings are unpacked and packed beforehand, so that the transaction is short; it looks whether the blocks are
    still those that were read (SQLite gives the keys of rows that went to new ones), and does nothing if not.

    Args:
        db: The database.
        keys: Of blocks of one device, attempt and method, in order of their start.

    Returns:
        Whether they are one now.
    """
    of_these = PowerSample.key.in_(keys), PowerSample.parts.is_(None)
    identity = select(*_IDENTITY).where(*of_these).order_by(PowerSample.key)
    with db.read() as session:
        seen = session.execute(identity).all()
        rows = session.execute(
            select(PowerSample.started_at, PowerSample.readings)
            .where(*of_these)
            .order_by(PowerSample.started_monotonic_s, PowerSample.key)
        ).all()
    if len(rows) < len(keys):
        return False
    columns = joined_columns(joined([unpack(row.readings) for row in rows]))
    # Not the earliest: a clock that was set back meanwhile would part it from the monotonic time beside it.
    columns["started_at"] = rows[0].started_at
    first, *others = keys
    with db.write() as session:
        # Locked in one order, so that two who want some of the same wait for each other, not both forever.
        if session.execute(identity.with_for_update()).all() != seen:
            return False
        if others:
            session.execute(delete(PowerSample).where(PowerSample.key.in_(others)))
        session.execute(update(PowerSample).where(PowerSample.key == first).values(columns))
        return True


_IDENTITY = (
    PowerSample.key,
    PowerSample.device_key,
    PowerSample.experiment_attempt,
    PowerSample.method,
    PowerSample.started_monotonic_s,
    PowerSample.ended_monotonic_s,
    PowerSample.sample_count,
)
