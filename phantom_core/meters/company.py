"""What a board's states say of an energy that was measured meanwhile: shared, throttled, at its limit or another.

Whether others compute on a board is told from the driver's list of processes. The driver numbers processes as the
host's first PID namespace does, in which a rank in a container doesn't know its own number. So a rank tells its
number only where it is in that namespace; elsewhere the list can only be counted.
"""

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from phantom_core.board_limits import UNKNOWN_LIMITS, BoardLimits
from phantom_core.flags import Flag
from phantom_core.meters.nvml_board import POWER_CAP, SLOWDOWNS
from phantom_core.protocol import BoardState

FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the namespace that Linux starts with (PROC_PID_INIT_INO in its include/linux/proc_ns.h)."""


@dataclass(frozen=True)
class OwnProcesses:
    """The ranks that belong on a board."""

    count: int
    """How many."""
    process_ids: frozenset[int] | None = None
    """Their numbers with the driver; None where any of them doesn't know its own."""

    @classmethod
    def of(cls, process_ids: Collection[int | None]) -> "OwnProcesses":
        """Ranks by what `driver_process_id` told each of them."""
        known = frozenset(each for each in process_ids if each is not None)
        return cls(len(process_ids), known if len(known) == len(process_ids) else None)


def driver_process_id(namespace: Path = Path("/proc/self/ns/pid")) -> int | None:
    """This process's number as the driver has it; None where the two may number differently."""
    try:
        is_first = namespace.stat().st_ino == FIRST_PID_NAMESPACE
    except OSError:
        return None
    return os.getpid() if is_first else None


def board_shared(process_ids: Collection[int] | None, own: OwnProcesses) -> bool | None:
    """Whether others compute on a board too.

    Args:
        process_ids: Processes on the board, as the driver numbers them; None if it can't tell.
        own: The ranks that compute there at that moment.

    Returns:
        None if it can't be told: no list, or one that lacks our own ranks and so may lack others.
    """
    if process_ids is None:
        return None
    on_board = set(process_ids)
    if own.process_ids is not None:
        if on_board - own.process_ids:
            return True
        return None if own.process_ids - on_board else False
    if len(on_board) < own.count:
        return None
    return len(on_board) > own.count


def state_flags(
    states: Iterable[BoardState], own: OwnProcesses, limits: BoardLimits = UNKNOWN_LIMITS
) -> tuple[Flag, ...]:
    """The flags that states of one board during a window raise.

    Args:
        states: The board's states in the window.
        own: The ranks that compute on it.
        limits: Its limits when the experiment opened its meter.
    """
    flags = set()
    company = []
    for state in states:
        reasons = set(state.throttle_reasons or ())
        if reasons & SLOWDOWNS:
            flags.add(Flag.THROTTLED)
        if POWER_CAP in reasons:
            flags.add(Flag.POWER_CAPPED)
        if _limits(state).changed_from(limits):
            flags.add(Flag.CLOCKS_DIFFER)
        company.append(board_shared(state.process_ids, own))
    if True in company:
        flags.add(Flag.BOARD_SHARED)
    elif company and False not in company:
        flags.add(Flag.COMPANY_UNKNOWN)
    return tuple(flag for flag in Flag if flag in flags)


def _limits(state: BoardState) -> BoardLimits:
    return BoardLimits(state.power_limit_mw, state.clock_limit_mhz, state.memory_clock_limit_mhz)
