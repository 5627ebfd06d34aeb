"""How long something has stood still, by a clock that nobody sets: a host's wall clock may be stepped by hours."""

from collections.abc import Callable, Hashable, Mapping


class Standing:
    """Remembers since when each of some values has been what it is."""

    def __init__(self, clock_s: Callable[[], float], longest_gap_s: float = float("inf")) -> None:
        """Args.

        clock_s: A monotonic clock.
        longest_gap_s: Seconds between two looks after which nothing is known of the time between, so that
            everything counts from the later one.
        """
        self._clock_s = clock_s
        self._longest_gap_s = longest_gap_s
        self._looked_s: float | None = None
        self._seen: dict[str, tuple[Hashable, float]] = {}

    def look(self, values: Mapping[str, Hashable]) -> dict[str, float]:
        """Looks at all values.

        Args:
            values: What each is now; names that are missing are forgotten.

        Returns:
            Seconds for which each has been seen to stand still; 0 for one that is new.
        """
        now_s = self._clock_s()
        if self._looked_s is not None and now_s - self._looked_s > self._longest_gap_s:
            self._seen.clear()
        self._looked_s = now_s
        self._seen = {
            name: seen if (seen := self._seen.get(name)) is not None and seen[0] == value else (value, now_s)
            for name, value in values.items()
        }
        return {name: now_s - since_s for name, (_, since_s) in self._seen.items()}
