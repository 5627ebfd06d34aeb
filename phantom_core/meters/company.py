"""What a board's states say about an energy that was measured meanwhile: shared, throttled, at its limit."""

from collections.abc import Collection, Iterable

from phantom_core.flags import Flag
from phantom_core.meters.nvml_board import POWER_CAP, SLOWDOWNS
from phantom_core.protocol import BoardState


def board_shared(process_ids: Collection[int] | None, own_process_ids: Collection[int]) -> bool | None:
    """Whether others compute on a board too.

    Where the driver numbers processes as this host does, whoever is not ours is another. In a container it
    may number them differently; then none of ours is on its list, and only their count can be compared.

    Args:
        process_ids: Processes on the board, as the driver numbers them; None if it can't tell.
        own_process_ids: Processes that belong there: the ranks that use the board.

    Returns:
        None if the driver can't tell.
    """
    if process_ids is None:
        return None
    others = set(process_ids) - set(own_process_ids)
    if len(others) < len(set(process_ids)):
        return bool(others)
    return len(others) > len(set(own_process_ids))


def state_flags(states: Iterable[BoardState], own_process_ids: Collection[int]) -> tuple[Flag, ...]:
    """The flags that states of one board during a window raise.

    Args:
        states: The board's states in the window.
        own_process_ids: Processes that belong on the board.
    """
    flags = set()
    for state in states:
        reasons = set(state.throttle_reasons or ())
        if reasons & SLOWDOWNS:
            flags.add(Flag.THROTTLED)
        if POWER_CAP in reasons:
            flags.add(Flag.POWER_CAPPED)
        if board_shared(state.process_ids, own_process_ids):
            flags.add(Flag.BOARD_SHARED)
    return tuple(flag for flag in Flag if flag in flags)
