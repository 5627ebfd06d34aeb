"""Ghostwatt's meter, Zeus and CodeCarbon behind one interface, for `benchmarks/meters.py`."""

import importlib
from typing import Protocol

from phantom_core.meters.base import EnergyReading
from phantom_core.meters.choose import MeterRequest, open_meter
from phantom_core.meters.windows import window_energy


class Tool(Protocol):
    """Something that meters windows of one board."""

    name: str

    def begin(self) -> None:
        """Opens a window."""

    def end(self) -> float | None:
        """Closes it; millijoules of the board."""

    def close(self) -> None:
        """Gives everything back."""


class Ghostwatt:
    """This project's meter."""

    name = "ghostwatt"

    def __init__(self, uuid: str) -> None:
        self.meter = open_meter(MeterRequest("cuda", uuid=uuid))
        self.start: EnergyReading | None = None
        self.uncertainty_mj: float | None = None

    def begin(self) -> None:
        """Reads the counter."""
        self.start = self.meter.read_energy()

    def end(self) -> float | None:
        """Reads it again."""
        assert self.start is not None
        energy = window_energy(self.start, self.meter.read_energy())
        self.uncertainty_mj = energy.uncertainty_mj
        return energy.energy_mj

    def close(self) -> None:
        """Closes the meter."""
        self.meter.close()


class Zeus:
    """ZeusMonitor, as its documentation has it; synchronizing is left to the benchmark, as for all tools."""

    name = "zeus"

    def __init__(self, cuda_index: int) -> None:
        monitor = importlib.import_module("zeus.monitor")
        self.index = cuda_index
        self.monitor = monitor.ZeusMonitor(gpu_indices=[cuda_index], cpu_indices=[])

    def begin(self) -> None:
        """Begins a window."""
        self.monitor.begin_window("window", sync_execution=False)

    def end(self) -> float | None:
        """Ends it."""
        measured = self.monitor.end_window("window", sync_execution=False)
        return float(1_000 * measured.gpu_energy[self.index])

    def close(self) -> None:
        """Holds nothing."""


class CodeCarbon:
    """CodeCarbon's offline tracker with tasks."""

    name = "codecarbon"

    def __init__(self, nvml_index: int) -> None:
        codecarbon = importlib.import_module("codecarbon")
        self.tracker = codecarbon.OfflineEmissionsTracker(
            country_iso_code="USA",
            gpu_ids=[nvml_index],
            save_to_file=False,
            log_level="critical",
            allow_multiple_runs=True,
        )

    def begin(self) -> None:
        """Starts a task."""
        self.tracker.start_task()

    def end(self) -> float | None:
        """Stops it; its answer is in kWh."""
        task = self.tracker.stop_task()
        return None if task is None else float(task.gpu_energy) * 3.6e9

    def close(self) -> None:
        """Stops the tracker."""
        self.tracker.stop()
