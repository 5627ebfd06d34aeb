"""The meter of an AMD board through `amdsmi`, if that package is installed; it is imported when first used.

Boards are found by the UUID that amdsmi, HIP or PyTorch gives them. The accumulator of some boards is known to count
wrongly, so it is held against power once, when the meter is opened, and refused if it is far off.
"""

import contextlib
import importlib
import time
from collections.abc import Callable
from typing import Any

from phantom_core.meters.base import (
    DeviceNotFound,
    EnergyReading,
    Instant,
    MeterBase,
    MeterUnavailable,
    PowerReading,
)
from phantom_core.meters.update_period import ASSUMED_PERIOD_S, measured_period_s
from phantom_core.protocol import BoardState, DeviceInfo

MOST_OFF = 0.5
"""An accumulator that differs by more than this share from power x time is not believed."""


class AmdMeter(MeterBase):
    """Reads one AMD board. Never raises once it is open."""

    def __init__(
        self,
        uuid: str,
        host: str,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Opens the meter.

        Args:
            uuid: UUID of the board, with or without `GPU-`.
            host: Name of this host.
            monotonic: Tells the time, in seconds.
            sleep: Waits.

        Raises:
            MeterUnavailable: amdsmi is not installed, or can't be opened.
            DeviceNotFound: It has no such board.
        """
        self._monotonic, self._smi = monotonic, _opened()
        self._open = True
        try:
            self._handle = _find(self._smi, uuid)
            self._limit_mw = self._power_limit_mw()
            reason, self._lag_s = self._check(sleep)
            asic = self._ask("amdsmi_get_gpu_asic_info")[0] or {}
            driver = self._ask("amdsmi_get_gpu_driver_info")[0] or {}
        except BaseException as error:
            self.close()
            if isinstance(error, self._smi.AmdSmiException):
                raise MeterUnavailable(f"amdsmi can't list its boards: {error}") from error
            raise
        self._device = DeviceInfo(
            host=host,
            uuid=uuid,
            kind="rocm",
            name=asic.get("market_name", "AMD GPU"),
            method="amdsmi.counter" if reason is None else None,
            scope="gpu" if reason is None else None,
            reason=reason,
            driver=driver.get("driver_version"),
            power_limit_mw=self._limit_mw,
        )

    @property
    def device(self) -> DeviceInfo:
        """The board."""
        return self._device

    def read_energy(self) -> EnergyReading:
        """The board's accumulator."""
        if self._device.method is None:
            return EnergyReading(Instant.now(self._monotonic), None, None, None, reason=self._device.reason)
        before_s = self._monotonic()
        energy_mj, reason = self._energy_mj()
        instant = Instant.since(before_s, self._monotonic)
        if energy_mj is None:
            return EnergyReading(instant, None, None, None, reason=reason)
        lag_s = self._lag_s + 2 * (instant.monotonic_s - before_s)
        return EnergyReading(
            instant=instant,
            energy_mj=energy_mj,
            method="amdsmi.counter",
            scope="gpu",
            uncertainty_mj=None if self._limit_mw is None else lag_s * self._limit_mw,
            lag_s=lag_s,
        )

    def read_power(self) -> PowerReading:
        """The board's power: momentary where the driver has it, else averaged."""
        before_s = self._monotonic()
        info, reason = self._ask("amdsmi_get_power_info")
        instant = Instant.since(before_s, self._monotonic)
        for key, method in (("current_socket_power", "instant"), ("average_socket_power", "average")):
            watts = (info or {}).get(key)
            if isinstance(watts, int | float) and watts > 0:
                return PowerReading(instant, 1_000.0 * watts, "instant" if method == "instant" else "average")
        return PowerReading(instant, None, None, reason=reason or "the driver gives no socket power")

    def read_state(self) -> BoardState:
        """Utilisation, limit and processes."""
        now = Instant.now(self._monotonic)
        activity, busy_reason = self._ask("amdsmi_get_gpu_activity")
        processes, list_reason = self._ask("amdsmi_get_gpu_process_list")
        busy = (activity or {}).get("gfx_activity")
        reasons = [reason for reason in (busy_reason, list_reason) if reason]
        return BoardState(
            at=now.at,
            monotonic_s=now.monotonic_s,
            utilization_percent=busy if isinstance(busy, int | float) else None,
            power_limit_mw=self._power_limit_mw(),
            process_ids=None if processes is None else tuple(sorted({each["pid"] for each in processes})),
            reasons=tuple(reasons),
        )

    def close(self) -> None:
        """Gives amdsmi back."""
        if self._open:
            self._open = False
            self._ask("amdsmi_shut_down", on_board=False)

    def _ask(self, function: str, *, on_board: bool = True) -> tuple[Any, str | None]:
        arguments = (self._handle,) if on_board else ()
        try:
            return getattr(self._smi, function)(*arguments), None
        except self._smi.AmdSmiException as error:
            return None, f"{function}: {error}"

    def _energy_mj(self) -> tuple[float | None, str | None]:
        count, reason = self._ask("amdsmi_get_energy_count")
        if count is None:
            return None, reason
        ticks = count.get("energy_accumulator", count.get("power"))
        if ticks is None:
            return None, "amdsmi_get_energy_count: no accumulator in the answer"
        return ticks * count["counter_resolution"] / 1_000, None

    def _power_limit_mw(self) -> float | None:
        caps, _ = self._ask("amdsmi_get_power_cap_info")
        cap_uw = (caps or {}).get("power_cap")
        return cap_uw / 1_000 if isinstance(cap_uw, int) and cap_uw > 0 else None

    def _check(self, sleep: Callable[[float], None]) -> tuple[str | None, float]:
        """Why the accumulator can't be used, if it can't, and how long it stands still between movements."""
        start_s = self._monotonic()
        start_mj, reason = self._energy_mj()
        if start_mj is None:
            return reason, ASSUMED_PERIOD_S
        power = self.read_power().power_mw
        period_s = measured_period_s(lambda: self._energy_mj()[0], self._monotonic, sleep)
        end_mj, _ = self._energy_mj()
        elapsed_s = self._monotonic() - start_s
        if power is not None and period_s is not None and end_mj is not None:
            seen_mj, expected_mj = end_mj - start_mj, power * elapsed_s
            if abs(seen_mj - expected_mj) > MOST_OFF * expected_mj + period_s * power:
                told = f"{seen_mj:.0f} mJ in {elapsed_s:.2f} s at {power:.0f} mW"
                return f"the accumulator can't be right: it counted {told}", period_s
        return None, period_s or ASSUMED_PERIOD_S


def _opened() -> Any:
    try:
        amdsmi = importlib.import_module("amdsmi")
    except (ImportError, OSError, KeyError) as error:  # its import loads the driver's library
        raise MeterUnavailable(
            f"AMD boards are metered through the package amdsmi, which can't be imported ({error}); "
            "pip install the version that comes with your ROCm"
        ) from error
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        raise MeterUnavailable(f"amdsmi can't be opened: {error}") from error
    return amdsmi


def _find(amdsmi: Any, uuid: str) -> Any:
    known = []
    for handle in amdsmi.amdsmi_get_processor_handles():
        names = [str(amdsmi.amdsmi_get_gpu_device_uuid(handle))]
        # Older versions have no such function.
        with contextlib.suppress(amdsmi.AmdSmiException, AttributeError, KeyError):
            hip_uuid = str(amdsmi.amdsmi_get_gpu_enumeration_info(handle)["hip_uuid"])
            # PyTorch writes the bytes of HIP's UUID in hexadecimal, and these are characters.
            names += [hip_uuid, _bare(hip_uuid).encode().hex()]
        if _bare(uuid) in [_bare(name) for name in names]:
            return handle
        known += names
    raise DeviceNotFound(f"device UUID {uuid!r} is no AMD board of this host; there are: {known or 'none'}")


def _bare(uuid: str) -> str:
    return uuid.strip().lower().removeprefix("gpu-").replace("-", "")
