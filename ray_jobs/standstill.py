"""Tells ranks that live and wait for one another for ever from ranks that are in something long.

All of them together: where one rank gets on, those that wait for it will. How long nobody may get on is the
experiment's limit, or what one of them has said that its present work may rightly take.
"""

import time
from collections.abc import Callable, Sequence

from ray_jobs.headway import Standing

MOST_TOLD = 8
"""Ranks that are named of those in one place, and places that are named."""


class Standstill:
    """Looks at how far all ranks are, again and again."""

    def __init__(
        self, limit_s: float, longest_gap_s: float, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Args.

        limit_s: Seconds for which nobody may get on, where no rank says that it may take longer.
        longest_gap_s: Seconds between two looks of which no more is counted: the host may have stood still.
        clock_s: A monotonic clock.
        """
        self._limit_s = limit_s
        self._longest_gap_s = longest_gap_s
        self._clock_s = clock_s
        self._looked_s = clock_s()
        self._seen: list[tuple[int, int]] = []
        self.still_s = 0.0
        """Seconds for which nobody has been seen to get on."""
        self.allowed_s = limit_s
        """How many they may be."""

    def look(self, ranks: Sequence[Standing]) -> str | None:
        """Looks once.

        Args:
            ranks: All of them, in order.

        Returns:
            What to tell of them if they have stood still for too long; None if not.
        """
        now_s, seen = self._clock_s(), [rank.moves for rank in ranks]
        if seen == self._seen:
            self.still_s += min(now_s - self._looked_s, self._longest_gap_s)
        else:
            self._seen, self.still_s = seen, 0.0
        self._looked_s = now_s
        self.allowed_s = max(self._limit_s, *(rank.may_take_s for rank in ranks))
        if self.still_s <= self.allowed_s:
            return None
        return (
            f"no rank has got on for {self.still_s:.0f} s ({self.allowed_s:.0f} s are allowed), though all of them "
            f"live: {_places(ranks)}. One of these waits for what never comes: a peer that is elsewhere, a disk, a "
            "kernel; look there, or if it only took long, raise resources.progress_deadline_s"
        )


def _places(ranks: Sequence[Standing]) -> str:
    """Who is where; the places with fewest ranks first, since few hold up many."""
    places: dict[str, list[int]] = {}
    for rank, standing in enumerate(ranks):
        work = f", {standing.moves[1]:,} pieces of work given to its device" if standing.moves[1] else ""
        places.setdefault(standing.where + work, []).append(rank)
    by_number = sorted(places.items(), key=lambda place: len(place[1]))
    told = [f"{_named(who)} in {where}" for where, who in by_number[:MOST_TOLD]]
    if len(by_number) > MOST_TOLD:
        told.append(f"others in {len(by_number) - MOST_TOLD} more places")
    return "; ".join(told)


def _named(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:MOST_TOLD])) + (", ..." if len(ranks) > MOST_TOLD else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
