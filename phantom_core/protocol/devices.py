"""The devices and ranks of a worker group, and what a device was doing at one moment."""

from typing import Literal

from pydantic import AwareDatetime

from phantom_core.protocol.words import Method, Scope, Wire


class DeviceInfo(Wire):
    """A board or processor that energy is read from."""

    host: str
    """Host name."""
    uuid: str
    """NVML's UUID for GPUs; a name unique on the host for everything else."""
    kind: Literal["cuda", "rocm", "cpu"]
    """What it is."""
    name: str
    """Model name, such as `NVIDIA H200`."""
    method: Method | None
    """How its energy is read; None if it can't be."""
    scope: Scope | None
    """What the reading covers."""
    reason: str | None = None
    """Why it can't be read, or what the method leaves out."""
    driver: str | None = None
    """Driver version."""
    power_limit_mw: float | None = None
    """Enforced power limit."""
    clock_limit_mhz: float | None = None
    """Limit on the clock of the multiprocessors, MHz, as far as the driver tells one."""
    memory_clock_limit_mhz: float | None = None
    """Limit on the clock of the memory, MHz."""
    memory_bytes: int | None = None
    """Memory of the device."""


class RankInfo(Wire):
    """Where a rank of the worker group runs."""

    rank: int
    """From 0."""
    host: str
    """Host name."""
    device_uuid: str
    """Its device."""
    process_id: int | None = None
    """Its process as the host's driver numbers it; None where that can't be told (in a container)."""


class BoardState(Wire):
    """What a device was doing at one moment, beside its power."""

    at: AwareDatetime
    """UTC."""
    monotonic_s: float
    """The host's monotonic clock."""
    sm_clock_mhz: float | None = None
    """Clock of the multiprocessors, MHz; None if it can't be read."""
    memory_clock_mhz: float | None = None
    """Clock of the memory, MHz."""
    temperature_c: float | None = None
    """Temperature of the chip, degrees Celsius."""
    utilization_percent: float | None = None
    """Share of the driver's last sample period in which a kernel ran."""
    power_limit_mw: float | None = None
    """Enforced power limit."""
    clock_limit_mhz: float | None = None
    """Limit on the clock of the multiprocessors, MHz, as far as the driver tells one."""
    memory_clock_limit_mhz: float | None = None
    """Limit on the clock of the memory, MHz."""
    throttle_reasons: tuple[str, ...] | None = None
    """Why clocks are held down, such as `sw_power_cap`; empty if they are not, None if it can't be read."""
    process_ids: tuple[int, ...] | None = None
    """Processes that compute on the device, as the driver numbers them; None if it can't be read."""
    reasons: tuple[str, ...] = ()
    """Why something of the above is None."""
