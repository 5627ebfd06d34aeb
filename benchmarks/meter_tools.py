"""Ghostwatt's meter, Zeus and CodeCarbon behind one interface, for `benchmarks/meters.py`."""

import importlib
import importlib.util
import sys
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn, Protocol

from phantom_core.meters.base import EnergyReading, Meter
from phantom_core.meters.windows import window_energy
from phantom_core.protocol import Phase, Window
from ray_jobs.window_clock import WindowClock

_TURN: tuple[tuple[Phase, bool], ...] = (("training", False), ("evaluation", True))
"""What follows what in a job."""


class _Stopwatch:
    """Adds up what calls take."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        start_s = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - start_s


class Tool(Protocol):
    """Something that meters windows of one board."""

    name: str
    overlaps: bool
    """Whether several of its windows can be open at once."""

    def begin(self, window: str) -> None:
        """Opens a window of that name."""

    def end(self, window: str) -> float | None:
        """Closes it; millijoules of the board."""

    def in_turn(self, pause_s: float) -> float:
        """A training window, and an evaluation window after it, each as long as the pause.

        Returns:
            Seconds that both took besides the pauses.
        """
        watch = _Stopwatch()
        for window in ("training", "evaluation"):
            with watch.running():
                self.begin(window)
            time.sleep(pause_s)
            with watch.running():
                self.end(window)
        return watch.seconds

    def close(self) -> None:
        """Gives everything back."""


class Ghostwatt(Tool):
    """This project's meter, read as the other tools are: the counter at both ends."""

    name = "ghostwatt"
    overlaps = True

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.open: dict[str, EnergyReading] = {}
        self.uncertainty_mj: float | None = None
        """Of the window that was closed last."""

    def begin(self, window: str) -> None:
        """Reads the counter."""
        self.open[window] = self.meter.read_energy()

    def end(self, window: str) -> float | None:
        """Reads it again."""
        energy = window_energy(self.open.pop(window), self.meter.read_energy())
        self.uncertainty_mj = energy.uncertainty_mj
        return energy.energy_mj

    def close(self) -> None:
        """The meter stays its owner's."""


class GhostwattInJobs(Tool):
    """The same as jobs do it: power just before the window and just after it too, for a narrower bound."""

    name = "ghostwatt with power at the edges"
    overlaps = True

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.open: dict[str, tuple[float | None, EnergyReading]] = {}

    def begin(self, window: str) -> None:
        """Reads power, then the counter."""
        self.open[window] = (self.meter.read_power().power_mw, self.meter.read_energy())

    def end(self, window: str) -> float | None:
        """Reads the counter, then power."""
        power_mw, start = self.open.pop(window)
        end = self.meter.read_energy()
        return window_energy(start, end, [power_mw, self.meter.read_power().power_mw]).energy_mj

    def in_turn(self, pause_s: float) -> float:
        """The clock of jobs, whose evaluation begins where training was read last; one rank, no work."""
        told: list[Window] = []
        clock = WindowClock(
            self.meter, agree=lambda ok: ok, synchronize=lambda: None, emit=told.append, charged=True
        )
        watch = _Stopwatch()
        for phase, follows in _TURN:
            window = clock.window(phase, follows=follows)
            with watch.running():
                window.__enter__()
            time.sleep(pause_s)
            with watch.running():
                window.__exit__(None, None, None)
        assert len(told) == len(_TURN)
        return watch.seconds

    def close(self) -> None:
        """The meter stays its owner's."""


class Zeus(Tool):
    """ZeusMonitor, as its documentation has it; synchronizing is left to the benchmark, as for all tools."""

    name = "zeus"
    overlaps = True

    def __init__(self, cuda_index: int) -> None:
        monitor = importlib.import_module("zeus.monitor")
        self.index = cuda_index
        self.monitor = monitor.ZeusMonitor(gpu_indices=[cuda_index], cpu_indices=[])

    def begin(self, window: str) -> None:
        """Begins a window."""
        self.monitor.begin_window(window, sync_execution=False)

    def end(self, window: str) -> float | None:
        """Ends it."""
        measured = self.monitor.end_window(window, sync_execution=False)
        return float(1_000 * measured.gpu_energy[self.index])

    def close(self) -> None:
        """Holds nothing."""


class _Unused(types.ModuleType):
    """Stands in for a module that is loaded and never called on the way to a board's energy."""

    def __getattr__(self, name: str) -> "_Unused":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unused(f"{self.__name__}.{name}")

    def __call__(self, *_arguments: object, **_options: object) -> NoReturn:
        raise ImportError(f"{self.__name__} was called after all; install {self.__name__.split('.')[0]}")


CODECARBON_LOADS = ("pycountry", "pandas", "arrow", "prometheus_client")
"""What CodeCarbon imports for looking up countries, for files, servers and its own service."""


def lend_unused(names: tuple[str, ...]) -> list[str]:
    """Lets modules be imported that are not installed and will not be called.

    Returns:
        Those that were not installed.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    for name in missing:
        sys.modules[name] = _Unused(name)
    return missing


def lend_processor_names() -> list[str]:
    """Lets CodeCarbon look for this processor's name without `rapidfuzz`, and find none like it."""
    lent = lend_unused(("rapidfuzz",))
    if lent:
        process = types.SimpleNamespace(
            extractOne=lambda *_arguments, **_options: None, extract=lambda *_arguments, **_options: []
        )
        sys.modules["rapidfuzz"].__dict__["process"] = process
    return lent


class CodeCarbon(Tool):
    """CodeCarbon's offline tracker with tasks.

    It may run without the modules that it loads and a board's energy never needs, so that it can be carried to
    a host without a network; its processors' power is given, not guessed by their name.
    """

    name = "codecarbon"
    overlaps = False

    def __init__(self, nvml_index: int) -> None:
        if importlib.util.find_spec("codecarbon") is None:
            raise ModuleNotFoundError("no module named codecarbon", name="codecarbon")
        self.lent = [*lend_unused(CODECARBON_LOADS), *lend_processor_names()]
        codecarbon = importlib.import_module("codecarbon")
        self.tracker = codecarbon.OfflineEmissionsTracker(
            country_iso_code="USA",
            gpu_ids=[nvml_index],
            save_to_file=False,
            log_level="critical",
            allow_multiple_runs=True,
            force_cpu_power=100,
        )

    def begin(self, window: str) -> None:
        """Starts a task."""
        self.tracker.start_task(window)

    def end(self, window: str) -> float | None:
        """Stops it; its answer is in kWh."""
        task = self.tracker.stop_task(window)
        return None if task is None else float(task.gpu_energy) * 3.6e9

    def close(self) -> None:
        """Stops the tracker."""
        self.tracker.stop()
