"""Boards and processors as they are shown."""

from services.views.base import View


class DeviceView(View):
    """A board or processor that energy was read from."""

    host: str
    """Host name."""
    uuid: str
    """NVML's UUID for GPUs; a name unique on the host for everything else."""
    kind: str | None
    """`cuda`, `rocm` or `cpu`; None until the worker group described it."""
    name: str | None
    """Model name."""
    method: str | None
    """How its energy is read; None if it can't be."""
    scope: str | None
    """What the reading covers."""
    reason: str | None
    """Why it can't be read, or what the method leaves out."""
    driver: str | None
    """Driver version."""
    power_limit_mw: float | None
    """Enforced power limit, milliwatts."""
    clock_limit_mhz: float | None
    """Limit on the clock of the multiprocessors, MHz, as far as the driver tells one."""
    memory_clock_limit_mhz: float | None
    """Limit on the clock of the memory, MHz."""
    memory_bytes: int | None
    """Memory of the device."""
