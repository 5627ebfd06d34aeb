"""The estimate for a processor that can't be metered: CPU time of one process times watts per core.

    E = W x t,  W = 8 W per core by default, t = user + system seconds of all threads of the process

It is no measurement. It leaves out idle power, memory, turbo and vector units, and a hyperthread counts as
a core. 8 W is what CodeCarbon 3.3 assumes without other knowledge (4 W per hardware thread, two to a core);
published figures per busy core go from about 4 W (dense servers, per vCPU) to 12 W (desktops and Green
Algorithms' default), hence the bound of 50 %. On one host the factor is common to all arms and cancels in a
ratio, which then compares CPU time.
"""

import os
import threading
import time
from collections.abc import Callable

import psutil

from phantom_core.flags import Flag
from phantom_core.meters.base import EnergyReading, Instant, MeterBase, MeterUnavailable, PowerReading
from phantom_core.protocol import BoardState, DeviceInfo

WATTS_PER_CORE = 8.0
"""Default power of a busy core, in watts."""
RELATIVE_BOUND = 0.5
"""Half-width of the range that the true watts per core are taken to lie in, as a share."""


class CpuTimeMeter(MeterBase):
    """Estimates the energy of one process, from inside it or from outside by its id."""

    def __init__(
        self,
        host: str,
        uuid: str,
        name: str,
        watts_per_core: float = WATTS_PER_CORE,
        pid: int | None = None,
        why: str | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Opens the meter.

        Args:
            host: Name of this host.
            uuid: Name of the device, unique on the host.
            name: Model of the processor.
            watts_per_core: Power of a busy core, in watts.
            pid: The process; None for this one, also after a fork.
            why: Why the processor is estimated and not metered.
            monotonic: Tells the time, in seconds.
        """
        self._monotonic, self._watts = monotonic, watts_per_core
        own = pid is None or pid == os.getpid()
        self._process = None if own else _process(pid)
        self._lock = threading.Lock()
        self._since = Instant.now(monotonic)
        self._since_cpu_s = self._cpu_s()[0]
        estimate = f"estimated: CPU time x {watts_per_core:g} W per core, not measured"
        self._device = DeviceInfo(
            host=host,
            uuid=uuid,
            kind="cpu",
            name=name,
            method="estimate",
            scope="process",
            reason=f"{estimate} ({why})" if why else estimate,
        )

    @property
    def device(self) -> DeviceInfo:
        """The process's share of the processor."""
        return self._device

    def read_energy(self) -> EnergyReading:
        """Watts per core x CPU seconds since the process started."""
        now = Instant.now(self._monotonic)
        cpu_s, epoch, reason = self._cpu_s()
        if cpu_s is None:
            return EnergyReading(now, None, None, None, reason=reason, flags=(Flag.ESTIMATED,))
        energy_mj = 1_000 * self._watts * cpu_s
        return EnergyReading(
            instant=now,
            energy_mj=energy_mj,
            method="estimate",
            scope="process",
            uncertainty_mj=0.0,
            reason=self._device.reason,
            lag_s=0.0,
            accumulated_mj=RELATIVE_BOUND * energy_mj,
            epoch=epoch,
            flags=(Flag.ESTIMATED,),
        )

    def read_power(self) -> PowerReading:
        """Mean estimated power since the last call, or since the meter was opened."""
        with self._lock:
            now = Instant.now(self._monotonic)
            cpu_s, _, reason = self._cpu_s()
            since, since_cpu_s = self._since, self._since_cpu_s
            self._since, self._since_cpu_s = now, cpu_s
        elapsed_s = now.monotonic_s - since.monotonic_s
        if cpu_s is None or since_cpu_s is None:
            return PowerReading(now, None, None, reason=reason or "the process was just found")
        if elapsed_s <= 0 or cpu_s < since_cpu_s:
            return PowerReading(now, None, None, reason="no time has passed since the last reading")
        return PowerReading(now, 1_000 * self._watts * (cpu_s - since_cpu_s) / elapsed_s, "estimate")

    def read_state(self) -> BoardState:
        """A processor has no board state to tell."""
        now = Instant.now(self._monotonic)
        return BoardState(at=now.at, monotonic_s=now.monotonic_s, reasons=("a processor is no board",))

    def _cpu_s(self) -> tuple[float | None, int, str | None]:
        """CPU seconds of all threads, the process they belong to, and why there are none."""
        if self._process is None:
            return time.process_time(), os.getpid(), None
        try:
            if not self._process.is_running():
                return None, self._process.pid, f"process {self._process.pid} has ended"
            times = self._process.cpu_times()
        except psutil.Error as error:
            return None, self._process.pid, f"CPU time of process {self._process.pid}: {error}"
        return times.user + times.system, self._process.pid, None


def _process(pid: int | None) -> psutil.Process:
    try:
        return psutil.Process(pid)
    except psutil.Error as error:
        raise MeterUnavailable(f"process {pid} can't be metered: {error}") from error
