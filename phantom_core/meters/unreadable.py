"""The meter of a device that can't be read: every reading is None, with the reason."""

import time
from collections.abc import Callable

from phantom_core.flags import Flag
from phantom_core.meters.base import EnergyReading, Instant, MeterBase, PowerReading
from phantom_core.protocol import BoardState, DeviceInfo


class UnreadableMeter(MeterBase):
    """Stands in for a meter so that a job goes on without energy, and says why."""

    def __init__(self, device: DeviceInfo, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._device, self._monotonic = device, monotonic

    @property
    def device(self) -> DeviceInfo:
        """The device; its `reason` says why it can't be read."""
        return self._device

    def read_energy(self) -> EnergyReading:
        """No energy, and why."""
        reason = self._device.reason
        return EnergyReading(
            Instant.now(self._monotonic), None, None, None, reason=reason, flags=(Flag.ENERGY_UNKNOWN,)
        )

    def read_power(self) -> PowerReading:
        """No power, and why."""
        return PowerReading(Instant.now(self._monotonic), None, None, reason=self._device.reason)

    def read_state(self) -> BoardState:
        """No state, and why."""
        now = Instant.now(self._monotonic)
        reasons = (self._device.reason,) if self._device.reason else ()
        return BoardState(at=now.at, monotonic_s=now.monotonic_s, reasons=reasons)
