"""Idle power before the first round and after the last, and whether the devices really were idle."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from phantom_core.flags import Flag
from phantom_core.meters.base import Meter, PowerReading
from phantom_core.meters.company import OwnProcesses, board_shared
from phantom_core.meters.windows import WindowEnergy, window_energy
from phantom_core.protocol import BoardState

PERIOD_S = 0.1
"""Seconds between two readings of power while idle."""
IDLE_UTILIZATION_PERCENT = 5.0
"""A device that is busier than this is not idle."""
SETTLING = 0.5
"""Share of the time after which utilisation counts: the driver's figure looks back over a second."""
NOBODY = OwnProcesses(0, frozenset())
"""No rank has come to the boards yet."""


@dataclass(frozen=True)
class IdlePower:
    """What one device drew while nothing was to run on it."""

    host: str
    """Host of the device."""
    device_uuid: str
    """The device."""
    power_mw: float | None
    """Mean idle power in milliwatts; None if unknown."""
    uncertainty_mw: float | None
    """Bound on its reading error, in milliwatts; None if unknown."""
    duration_s: float
    """Seconds over which it was measured."""
    energy: WindowEnergy
    """The window that it comes from, with method, scope and flags (`not_idle_baseline`, `board_shared`)."""
    reason: str | None = None
    """Why it is unknown, or why the device was not idle."""


def idle_power(
    meters: Sequence[Meter],
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
    *,
    own: OwnProcesses = NOBODY,
    monotonic: Callable[[], float] = time.monotonic,
) -> tuple[IdlePower, ...]:
    """Measures idle power of all devices at once.

    Args:
        meters: One for each distinct device.
        seconds: How long.
        sleep: Waits.
        own: Ranks that may be on each of the boards without being company, though they idle.
        monotonic: Tells the time, in seconds.

    Returns:
        One result per meter, in order.

    Raises:
        ValueError: `seconds` is not positive.
    """
    if not seconds > 0:
        raise ValueError(
            f"seconds = {seconds}: an idle baseline needs a positive duration; 2 or more is useful"
        )
    watches = [_Watch(meter) for meter in meters]
    psutil.cpu_percent()
    start_s = monotonic()
    for watch in watches:
        watch.begin()
    while (elapsed_s := monotonic() - start_s) < seconds:
        for watch in watches:
            watch.look(settled=elapsed_s >= SETTLING * seconds)
        sleep(min(PERIOD_S, seconds - elapsed_s))
    for watch in watches:
        watch.end()
    host_busy_percent = psutil.cpu_percent()
    return tuple(watch.result(own, host_busy_percent) for watch in watches)


class _Watch:
    """One device while it idles."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._powers: list[PowerReading] = []
        self._states: list[BoardState] = []

    def begin(self) -> None:
        self._powers.append(self._meter.read_power())
        self._start = self._meter.read_energy()

    def look(self, *, settled: bool) -> None:
        self._powers.append(self._meter.read_power())
        if settled:
            self._states.append(self._meter.read_state())

    def end(self) -> None:
        self._end = self._meter.read_energy()
        self._powers.append(self._meter.read_power())
        self._states.append(self._meter.read_state())

    def result(self, own: OwnProcesses, host_busy_percent: float) -> IdlePower:
        energy = window_energy(self._start, self._end, [reading.power_mw for reading in self._powers])
        duration_s = self._end.instant.monotonic_s - self._start.instant.monotonic_s
        busy, flags = self._busy(own, host_busy_percent)
        known = energy.energy_mj is not None and duration_s > 0
        device = self._meter.device
        return IdlePower(
            host=device.host,
            device_uuid=device.uuid,
            power_mw=energy.energy_mj / duration_s if known and energy.energy_mj is not None else None,
            uncertainty_mw=energy.uncertainty_mj / duration_s if energy.uncertainty_mj is not None else None,
            duration_s=duration_s,
            energy=WindowEnergy(
                energy.energy_mj,
                energy.uncertainty_mj,
                energy.method,
                energy.scope,
                energy.reason,
                tuple(dict.fromkeys((*energy.flags, *flags))),
            ),
            reason=busy if known else energy.reason,
        )

    def _busy(self, own: OwnProcesses, host_busy_percent: float) -> tuple[str | None, tuple[Flag, ...]]:
        if self._meter.device.method == "rapl" and host_busy_percent > IDLE_UTILIZATION_PERCENT:
            return f"the host's processors were {host_busy_percent:.0f} % busy", (Flag.NOT_IDLE_BASELINE,)
        if self._meter.device.kind == "cpu":
            return None, ()
        for state in self._states:
            if board_shared(state.process_ids, own):
                reason = f"processes {list(state.process_ids or ())} are on the board"
                return reason, (Flag.NOT_IDLE_BASELINE, Flag.BOARD_SHARED)
            if (state.utilization_percent or 0) > IDLE_UTILIZATION_PERCENT:
                return f"the board was {state.utilization_percent:.0f} % busy", (Flag.NOT_IDLE_BASELINE,)
        return self._unchecked(own)

    def _unchecked(self, own: OwnProcesses) -> tuple[str | None, tuple[Flag, ...]]:
        """What could not be looked at on a board of which nothing says that it was busy.

        Utilisation is the whole board's, whoever computes there, so alone it shows an idle board; so does a list of
        processes that holds none but our own, which idle. Without both nothing does.
        """
        why = "; ".join(self._states[-1].reasons)
        if any(board_shared(state.process_ids, own) is False for state in self._states):
            return None, ()
        hidden = (
            f"who else was on the board can't be told: {why or 'the list of processes lacks our own ranks'}"
        )
        if any(state.utilization_percent is not None for state in self._states):
            return hidden, (Flag.COMPANY_UNKNOWN,)
        return f"{hidden}; nor how busy it was", (Flag.NOT_IDLE_BASELINE, Flag.COMPANY_UNKNOWN)
