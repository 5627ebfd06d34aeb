"""Intel's and AMD's running energy totals (RAPL) through /sys/class/powercap: packages and their memory."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from phantom_core.flags import Flag
from phantom_core.meters.base import EnergyReading, Instant, MeterBase, MeterUnavailable, PowerReading
from phantom_core.protocol import BoardState, DeviceInfo, Scope

POWERCAPS = (Path("/sys/class/powercap"), Path("/host/sys/class/powercap"))
"""Where Linux lists power domains, and where a container that must not see them there gets them mounted."""
UPDATE_PERIOD_S = 0.001
"""RAPL counters move about every millisecond (Intel SDM 3B, 15.10)."""
ASSUMED_LIMIT_W = 1_000.0
"""Power that a domain stays under if it states no limit."""
GRANT = (
    "to grant it until the next boot: sudo chmod a+r /sys/class/powercap/*/energy_uj; "
    "docs/energy.md has a rule that lasts"
)


@dataclass(frozen=True)
class Domain:
    """One power domain with a sound counter."""

    folder: Path
    """Its folder under powercap."""
    name: str
    """`package-0`, `dram`."""
    range_uj: int
    """Value after which its counter starts at 0 again, in microjoules."""
    limit_w: float
    """Power that it stays under, in watts."""

    def read_uj(self) -> int:
        """Its counter in microjoules."""
        return int((self.folder / "energy_uj").read_text())


@dataclass(frozen=True)
class Domains:
    """What powercap offers."""

    usable: tuple[Domain, ...]
    """Packages first, then memory."""
    dropped: tuple[str, ...]
    """Domains left out, each with the reason."""


def find_powercap(places: Sequence[Path] = POWERCAPS) -> Path:
    """The first place with a power domain; the first of all if none has one."""
    return next((place for place in places if any(place.glob("intel-rapl:*/name"))), places[0])


def find_domains(powercap: Path) -> Domains:
    """The packages and their memory, each once.

    The platform domain (`psys`) and the `-mmio` doubles cover the same joules again and cores are part
    of their package, so none of them is used.

    Raises:
        MeterUnavailable: There is no package, or none may be read; the message says how to grant it.
    """
    zones = sorted(powercap.glob("intel-rapl:*")) if powercap.is_dir() else []
    usable, dropped, forbidden = [], [], []
    for zone in zones:
        name = _text(zone / "name")
        if name is None or not (name.startswith("package") or name == "dram"):
            continue
        label = f"{name} ({zone.name})"
        try:
            counter = (zone / "energy_uj").read_text()
        except PermissionError:
            forbidden.append(label)
            continue
        except OSError as error:
            dropped.append(f"{label}: {error}")
            continue
        if not counter.strip().isdigit():
            dropped.append(f"{label}: energy_uj holds no number but {counter.strip()!r}")
            continue
        wrap_uj = _number(zone / "max_energy_range_uj")
        if not wrap_uj:
            dropped.append(
                f"{label}: max_energy_range_uj can't be read, so a wrap-around could not be undone"
            )
            continue
        limit_uw = _number(zone / "constraint_0_max_power_uw") or _number(
            zone / "constraint_0_power_limit_uw"
        )
        usable.append(Domain(zone, name, wrap_uj, limit_uw / 1e6 if limit_uw else ASSUMED_LIMIT_W))
    if forbidden:
        raise MeterUnavailable(f"RAPL: reading {', '.join(forbidden)} is not permitted; {GRANT}")
    packages = [domain for domain in usable if domain.name.startswith("package")]
    if not packages:
        found = "; ".join(dropped) or f"no package domain under {powercap}"
        raise MeterUnavailable(f"RAPL: {found}")
    memory = [domain for domain in usable if domain.name == "dram"]
    return Domains(tuple(packages + memory), tuple(dropped))


class RaplMeter(MeterBase):
    """The processors of one host as one device: all their packages, and memory where it has a counter.

    Counters wrap around every few minutes to hours; a thread reads them often enough to see each wrap.
    """

    def __init__(
        self,
        host: str,
        name: str,
        powercap: Path,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Opens the meter.

        Args:
            host: Name of this host.
            name: Model of the processor.
            powercap: Where to look.
            monotonic: Tells the time, in seconds.

        Raises:
            MeterUnavailable: Nothing to read, or not permitted.
        """
        found = find_domains(powercap)
        self._monotonic = monotonic
        self._domains = found.usable
        self._last_uj: list[int] | None = None
        self._last_s = 0.0
        self._total_uj = 0
        self._epoch = 0
        self._power_since: EnergyReading | None = None
        self._flags = (Flag.DOMAIN_DROPPED,) if found.dropped else ()
        memory = any(domain.name == "dram" for domain in found.usable)
        self._scope: Scope = "package+dram" if memory else "package"
        self._wrap_s = min(domain.range_uj / 1e6 / domain.limit_w for domain in found.usable)
        self._limit_mw = 1_000 * sum(domain.limit_w for domain in found.usable)
        self._device = DeviceInfo(
            host=host,
            uuid="cpu-packages",
            kind="cpu",
            name=name,
            method="rapl",
            scope=self._scope,
            reason="; ".join(f"left out {dropped}" for dropped in found.dropped) or None,
        )
        self._start()

    @property
    def device(self) -> DeviceInfo:
        """All packages of the host as one device, whatever number of ranks share them."""
        return self._device

    def read_energy(self) -> EnergyReading:
        """The total over all domains since the meter was opened, wrap-arounds undone."""
        if self._pid != os.getpid():
            self._epoch += 1
            self._start()
        with self._lock:
            return self._read()

    def read_power(self) -> PowerReading:
        """Mean power since the last call."""
        reading = self.read_energy()
        since, self._power_since = self._power_since, reading
        if reading.energy_mj is None:
            return PowerReading(reading.instant, None, None, reason=reading.reason)
        if since is None or since.energy_mj is None or since.epoch != reading.epoch:
            return PowerReading(reading.instant, None, None, reason="the first reading has no earlier one")
        elapsed_s = reading.instant.monotonic_s - since.instant.monotonic_s
        if elapsed_s <= 0:
            return PowerReading(
                reading.instant, None, None, reason="no time has passed since the last reading"
            )
        return PowerReading(reading.instant, (reading.energy_mj - since.energy_mj) / elapsed_s, "average")

    def read_state(self) -> BoardState:
        """A processor has no board state to tell."""
        now = Instant.now(self._monotonic)
        return BoardState(at=now.at, monotonic_s=now.monotonic_s, reasons=("a processor is no board",))

    def close(self) -> None:
        """Ends the thread."""
        self._ended.set()
        if self._pid == os.getpid():
            self._thread.join()

    def _start(self) -> None:
        # A lock that another thread held while the process forked would stay held in the child.
        self._lock, self._ended, self._pid = threading.Lock(), threading.Event(), os.getpid()
        self._thread = threading.Thread(target=self._keep_up, args=(self._ended,), name="rapl", daemon=True)
        self._thread.start()

    def _keep_up(self, ended: threading.Event) -> None:
        while not ended.wait(self._wrap_s / 4):
            with self._lock:
                self._read()

    def _read(self) -> EnergyReading:
        before_s = self._monotonic()
        try:
            now_uj = [domain.read_uj() for domain in self._domains]
        except (OSError, ValueError) as error:
            self._last_uj = None
            instant = Instant.now(self._monotonic)
            return EnergyReading(instant, None, None, None, reason=f"RAPL: {error}", flags=self._flags)
        instant = Instant.since(before_s, self._monotonic)
        if self._last_uj is None or instant.monotonic_s - self._last_s > self._wrap_s:
            self._epoch += 1
        else:
            for domain, last_uj, uj in zip(self._domains, self._last_uj, now_uj, strict=True):
                self._total_uj += uj - last_uj if uj >= last_uj else uj - last_uj + domain.range_uj
        self._last_uj, self._last_s = now_uj, instant.monotonic_s
        lag_s = UPDATE_PERIOD_S + 2 * (instant.monotonic_s - before_s)
        return EnergyReading(
            instant=instant,
            energy_mj=self._total_uj / 1_000,
            method="rapl",
            scope=self._scope,
            uncertainty_mj=lag_s * self._limit_mw,
            reason=self._device.reason,
            lag_s=lag_s,
            epoch=self._epoch,
            flags=self._flags,
        )


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdigit() else None
