"""Waits for boards that others still compute on: an attempt that was killed a moment ago, or a stranger.

Energy that is measured beside them is not the arm's alone. What stays is told, and flags every window (`board_shared`).
"""

import time
from collections.abc import Callable
from typing import Any

from phantom_core.meters.base import Meter
from phantom_core.meters.company import OwnProcesses, board_shared

PATIENCE_S = 60.0
"""Longest wait: a killed process gives its boards back within seconds."""
LOOK_EVERY_S = 0.5
MOST_TOLD = 8
"""Process ids of one board that are told."""


def wait_for_free_boards(
    meter: Meter | None,
    own: OwnProcesses,
    *,
    gather: Callable[[Any], list[Any]],
    tell: Callable[[str], object],
    patience_s: float = PATIENCE_S,
) -> bool:
    """Waits until none but the ranks is on any board; all ranks call it together.

    A board whose driver lists no processes, or not even the ranks, is not waited for: its runs say that company is
    unknown.

    Args:
        meter: Of this rank's board; None where another rank looks at it.
        own: The ranks that belong on it.
        gather: Every rank's value, in rank order.
        tell: Says one line for whoever watches.
        patience_s: Seconds after which it goes on all the same.

    Returns:
        Whether nobody else is there, as far as can be told.
    """
    began_s = time.monotonic()
    has_told = False
    while True:
        told: list[tuple[str | None, float]] = gather((_company(meter, own), time.monotonic() - began_s))
        found = "; ".join(dict.fromkeys(company for company, _ in told if company is not None))
        waited_s = told[0][1]  # rank 0's clock, so that all decide alike
        if not found:
            if has_told:
                tell(f"the boards are free after {waited_s:.0f} s")
            return True
        if waited_s >= patience_s:
            tell(f"going on beside other processes, so no energy will be the arms' alone: {found}")
            return False
        if not has_told:
            tell(f"waiting up to {patience_s:.0f} s for other processes to leave: {found}")
            has_told = True
        time.sleep(LOOK_EVERY_S)


def _company(meter: Meter | None, own: OwnProcesses) -> str | None:
    """Who else is on a board; None if nobody is, or it can't be told."""
    if meter is None:
        return None
    present = meter.read_state().process_ids
    if not board_shared(present, own):
        return None
    others = sorted(set(present or ()) - (own.process_ids or frozenset()))
    known = "other processes" if own.process_ids is not None else f"processes ({own.count} of them ours)"
    listed = ", ".join(map(str, others[:MOST_TOLD])) + (", ..." if len(others) > MOST_TOLD else "")
    return f"{known} {listed} on {meter.device.uuid} of {meter.device.host}"
