"""Which meter reads which device: NVML for a CUDA board, RAPL for processors, else the labelled estimate."""

import logging
import os
import platform
import socket
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from phantom_core.meters.amd_meter import AmdMeter
from phantom_core.meters.base import Meter, MeterError, MeterUnavailable
from phantom_core.meters.cpu_estimate import WATTS_PER_CORE, CpuTimeMeter
from phantom_core.meters.nvml_meter import open_nvml_meter
from phantom_core.meters.rapl import RaplMeter, find_powercap
from phantom_core.meters.unreadable import UnreadableMeter
from phantom_core.protocol import DeviceInfo
from phantom_core.spec import GpuScope

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MeterRequest:
    """Which device is to be metered; small and picklable, so that a rank can hand it to the sampler."""

    kind: Literal["cuda", "rocm", "cpu"]
    """What it is."""
    uuid: str | None = None
    """UUID of the board (full, shortened or a MIG slice's); unused for processors."""
    rank: int | None = None
    """Rank whose process an estimate is for; names the device `process-rank-<rank>`."""
    pid: int | None = None
    """Process that an estimate is for; None is the process that opens the meter."""
    watts_per_core: float = WATTS_PER_CORE
    """Power of a busy core that an estimate assumes, in watts."""
    cpu_method: Literal["auto", "rapl", "estimate"] = "auto"
    """`auto`: RAPL if it can be read, else the estimate."""
    scope: GpuScope = "gpu"
    """`module` meters a superchip's whole module, CPU included, where the driver can; unused for processors."""
    host: str = field(default_factory=socket.gethostname)
    """Name of the host, as it is stored."""
    powercap: Path | None = None
    """Where RAPL is looked for; None looks where Linux has it, then where a container may have it mounted."""
    power_only: bool = False
    """Whether only power will be read: a GPU's meter then opens without measuring its counter."""

    def from_outside(self, pid: int) -> "MeterRequest":
        """The same device for the node's sampler: its power, read from another process.

        Args:
            pid: The rank's process id.
        """
        return replace(self, pid=pid, power_only=True)


def open_meter(request: MeterRequest) -> Meter:
    """Opens the best meter that this host has for a device.

    Never raises for a device that can't be read: its meter's readings are None, with the reason.

    Args:
        request: The device.

    Returns:
        The meter; close it, or use it as a context manager.

    Raises:
        ValueError: A GPU without a UUID, or watts per core that are no power.
    """
    return _open(request, {})


def open_distinct_meters(requests: Iterable[MeterRequest]) -> tuple[Meter, ...]:
    """Opens one meter for each distinct device, however many of the requests mean it (ranks sharing a board,
    slices of one board, processors of one host).

    Args:
        requests: The devices.

    Returns:
        The meters in the order in which their devices first came.
    """
    refusals: dict[Path | str, str] = {}
    with ExitStack() as opened:
        meters: dict[tuple[str, str], Meter] = {}
        for request in dict.fromkeys(requests):
            meter = _open(request, refusals)
            key = (meter.device.host, meter.device.uuid)
            if key in meters:
                meter.close()
            else:
                meters[key] = opened.enter_context(meter)
        opened.pop_all()
    return tuple(meters.values())


def _open(request: MeterRequest, refusals: dict[Path | str, str]) -> Meter:
    """Opens a meter; `refusals` remembers why RAPL, NVML or amdsmi can't be read, so that this is said once."""
    if request.kind == "cpu":
        return _open_cpu(request, refusals)
    if not request.uuid:
        raise ValueError(
            f"uuid = {request.uuid!r}: a {request.kind} board is found by its UUID alone; give it"
        )
    try:
        if request.kind == "rocm":
            if request.scope != "gpu":
                raise MeterUnavailable(
                    f"gpu_scope = {request.scope}: AMD's driver tells no module's energy; use gpu"
                )
            return AmdMeter(request.uuid, request.host)
        return open_nvml_meter(request.uuid, request.host, request.scope, power_only=request.power_only)
    except MeterError as error:
        if refusals.get(request.kind) != str(error):
            log.warning("%s is not metered: %s", request.uuid, error)
        refusals[request.kind] = str(error)
        return UnreadableMeter(_unread(request, request.uuid, str(error)))


def _open_cpu(request: MeterRequest, refusals: dict[Path | str, str]) -> Meter:
    if not 0 < request.watts_per_core < 10_000:
        raise ValueError(
            f"watts_per_core = {request.watts_per_core}: must be more than 0 and less than 10,000 W; "
            "a core draws some 2 to 15 W"
        )
    name = processor_name()
    why = None
    if request.cpu_method != "estimate":
        powercap = request.powercap or find_powercap()
        if powercap not in refusals:
            try:
                return RaplMeter(request.host, name, powercap)
            except MeterUnavailable as error:
                refusals[powercap] = str(error)
                log.warning("the processors' energy can't be measured: %s", error)
        why = refusals[powercap]
        if request.cpu_method == "rapl":
            return UnreadableMeter(_unread(request, "cpu-packages", why, name))
    pid = os.getpid() if request.pid is None else request.pid
    uuid = f"process-{pid}" if request.rank is None else f"process-rank-{request.rank}"
    try:
        return CpuTimeMeter(request.host, uuid, name, request.watts_per_core, request.pid, why)
    except MeterUnavailable as error:
        return UnreadableMeter(_unread(request, uuid, str(error), name))


def _unread(request: MeterRequest, uuid: str, reason: str, name: str = "unknown") -> DeviceInfo:
    return DeviceInfo(
        host=request.host, uuid=uuid, kind=request.kind, name=name, method=None, scope=None, reason=reason
    )


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Model name of the processor, as Linux tells it."""
    try:
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"
