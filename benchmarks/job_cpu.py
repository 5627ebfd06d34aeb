"""Processor seconds of everything below one process, over time: other work on the machine adds none to them."""

import threading
import time
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Self

import psutil

PERIOD_S = 0.25
"""Between two looks; what a process spends after the last one is not seen."""


@dataclass(frozen=True)
class Spent:
    """What one process has spent so far."""

    program: str
    """Its command line, which Ray changes to what the process does."""
    cpu_s: float
    """User and system time since it was first seen; a process that began meanwhile counts whole."""


@dataclass
class CpuWatch:
    """Looks at a process and its descendants until it is closed; a context manager."""

    pid: int
    """The process at the top."""
    period_s: float = PERIOD_S
    """Seconds between two looks."""
    _before: dict[tuple[int, float], float] = field(default_factory=dict)
    _last: dict[tuple[int, float], Spent] = field(default_factory=dict)
    _totals: list[tuple[float, float]] = field(default_factory=list)
    _closing: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def total_s(self, at_s: float) -> float:
        """Processor seconds between the beginning and `at_s` on the wall clock, of all processes together."""
        at = bisect_right(self._totals, (at_s, float("inf")))
        return self._totals[max(0, at - 1)][1]

    def by_process(self) -> list[Spent]:
        """The same for each process, the dearest first."""
        return sorted(self._last.values(), key=lambda each: -each.cpu_s)

    def __enter__(self) -> Self:
        self._before = {key: spent.cpu_s for key, spent in self._seen().items()}
        self._totals = [(time.time(), 0.0)]
        self._thread = threading.Thread(target=self._watch, name="cpu-watch")
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._closing.set()
        assert self._thread is not None
        self._thread.join()

    def _watch(self) -> None:
        while not self._closing.wait(self.period_s):
            for key, spent in self._seen().items():
                self._last[key] = Spent(spent.program, spent.cpu_s - self._before.get(key, 0.0))
            self._totals.append((time.time(), sum(spent.cpu_s for spent in self._last.values())))

    def _seen(self) -> dict[tuple[int, float], Spent]:
        found: dict[tuple[int, float], Spent] = {}
        try:
            top = psutil.Process(self.pid)
            processes = [top, *top.children(recursive=True)]
        except psutil.Error:
            return found
        for process in processes:
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    key = (process.pid, process.create_time())
                    found[key] = Spent(" ".join(process.cmdline()), times.user + times.system)
            except psutil.Error:
                continue
        return found
