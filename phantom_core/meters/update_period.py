"""How often a counter moves, measured: half of what makes the bound on a window's energy."""

import time
from collections.abc import Callable

BUDGET_S = 0.35
"""Longest time that measuring may take."""
ASSUMED_PERIOD_S = 1.0
"""Update period of a counter that was not seen to move twice in that time."""
POLL_S = 0.001
"""Pause between two looks at the counter."""


def measured_period_s(
    read: Callable[[], float | None],
    monotonic_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> float | None:
    """The longest pause between two movements of a counter that was seen within the budget.

    A movement happened between two looks. The pause is taken from the last look before one movement to the
    first look after the next, so it is never shorter than the true one.

    Args:
        read: The counter now; None if it can't be read.
        monotonic_s: Tells the time, in seconds.
        sleep: Waits.

    Returns:
        Seconds; None if the counter did not move twice.
    """
    start_s = looked_s = monotonic_s()
    last, longest_s = read(), None
    before_move_s: float | None = None
    while monotonic_s() - start_s < BUDGET_S:
        sleep(POLL_S)
        value, now_s = read(), monotonic_s()
        if value is not None and value != last:
            if before_move_s is not None:
                longest_s = max(longest_s or 0.0, now_s - before_move_s)
            before_move_s, last = looked_s, value
        looked_s = now_s
    return longest_s
