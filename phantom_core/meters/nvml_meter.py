"""The meter of an NVIDIA board, found by UUID: its energy counter, or its power integrated."""

import logging
import time
from collections.abc import Callable

from phantom_core.flags import Flag
from phantom_core.meters.accumulator import PERIOD_S, PowerAccumulator
from phantom_core.meters.base import (
    EnergyReading,
    Instant,
    MeterBase,
    PowerMethod,
    PowerReading,
    made,
)
from phantom_core.meters.integration import sensor_period_s
from phantom_core.meters.nvml_board import Metric, NvmlBoard
from phantom_core.meters.nvml_capabilities import probe
from phantom_core.meters.nvml_library import Answer, NvmlSession
from phantom_core.meters.nvml_lookup import FoundBoard, find_board
from phantom_core.meters.update_period import ASSUMED_PERIOD_S, measured_period_s
from phantom_core.protocol import BoardState, DeviceInfo, Method, Scope
from phantom_core.spec import GpuScope

GPUS_OF_A_MODULE = {"GB200": 2, "GB300": 2}
"""GPUs on one module, by a part of the board's name; those of other superchips have theirs alone."""

log = logging.getLogger(__name__)


class NvmlMeter(MeterBase):
    """Reads one board. Never raises once it is open: what can't be read is None with a reason."""

    def __init__(
        self,
        session: NvmlSession,
        found: FoundBoard,
        host: str,
        scope: GpuScope = "gpu",
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        *,
        power_only: bool = False,
    ) -> None:
        """Opens the meter.

        Args:
            session: An open NVML, which the meter closes with itself.
            found: The board.
            host: Name of this host.
            scope: `gpu`, or `module` for the whole module of a superchip.
            monotonic: Tells the time, in seconds.
            sleep: Waits.
            power_only: For a sampler: the counter's update period is not measured (a third of a second), and
                without a counter no thread integrates power.
        """
        self._session, self._monotonic = session, monotonic
        self._board = board = NvmlBoard(session, found.uuid)
        self.capabilities = probe(board)
        self._scope: Scope = scope
        self._energy_metric = Metric.MODULE_ENERGY if scope == "module" else Metric.ENERGY
        self._read_counter = board.counter(self._energy_metric)
        self._power_metric, self._power_method = self._choose_power()
        self._losses = 0
        name = board.name().value or "NVIDIA GPU"
        self._gpus = _gpus_of_module(name) if scope == "module" else 1
        self._flags = tuple(
            flag
            for flag, holds in ((Flag.MIG_PARENT, found.divided), (Flag.MODULE_SHARED, self._gpus > 1))
            if holds
        )
        self._accumulator: PowerAccumulator | None = None
        self._period_s = ASSUMED_PERIOD_S
        method: Method | None = None
        if self.capabilities.has(self._energy_metric):
            method = "nvml.counter"
            self._period_s = ASSUMED_PERIOD_S if power_only else self._measure_period_s(sleep)
        elif self._power_metric is not None and not power_only:
            method = "nvml.power"
            look_back_s = sensor_period_s(self._power_method or "average", 1 / PERIOD_S)
            self._accumulator = PowerAccumulator(self.read_power, PERIOD_S, look_back_s)
        limit = board.read(Metric.POWER_LIMIT).value
        # The limit is the GPU's: a superchip's module may draw more.
        self._limit_mw: float | None = limit if scope == "gpu" else None
        self._method = method
        self._device = DeviceInfo(
            host=host,
            uuid=found.uuid,
            kind="cuda",
            name=name,
            method=method,
            scope=scope if method else None,
            reason=self._remarks(found),
            driver=session.ask("nvmlSystemGetDriverVersion").value,
            power_limit_mw=limit,
            clock_limit_mhz=board.read(Metric.CLOCK_LIMIT).value,
            memory_clock_limit_mhz=board.read(Metric.MEMORY_CLOCK_LIMIT).value,
            memory_bytes=board.memory_bytes().value,
        )

    @property
    def device(self) -> DeviceInfo:
        """The board; for a MIG slice its parent, so that slices of one board count once."""
        return self._device

    @property
    def update_period_s(self) -> float | None:
        """Seconds between two movements of the energy counter, as measured; None without a counter."""
        return self._period_s if self._method == "nvml.counter" else None

    def read_energy(self) -> EnergyReading:
        """The board's running total."""
        if self._accumulator is not None:
            return self._integrated(self._accumulator)
        monotonic = self._monotonic
        before_s = monotonic()
        if self._method is None:
            instant = Instant.now(monotonic)
            return EnergyReading(instant, None, None, None, reason=self._device.reason, flags=self._flags)
        answer = self._read_counter()
        after_s = monotonic()
        instant = made(Instant, (time.time(), (before_s + after_s) / 2))
        epoch = self._session.generation + self._losses
        if isinstance(answer, Answer):
            self._losses += answer.lost
            return EnergyReading(
                instant, None, None, None, reason=answer.reason, epoch=self._epoch, flags=self._flags
            )
        lag_s = self._period_s + after_s - before_s
        bound_mj = None if self._limit_mw is None else lag_s * self._limit_mw
        # Positions, since names cost: instant, energy, method, scope, bound, reason, lag, accumulated, epoch, flags.
        fields = (
            instant,
            float(answer),
            "nvml.counter",
            self._scope,
            bound_mj,
            None,
            lag_s,
            0.0,
            epoch,
            self._flags,
        )
        return made(EnergyReading, fields)

    def read_power(self) -> PowerReading:
        """The board's power: momentary where the driver has it, else its mean over about a second."""
        before_s = self._monotonic()
        if self._power_metric is None:
            instant = Instant.now(self._monotonic)
            return PowerReading(instant, None, None, reason=self.capabilities.why_not(Metric.POWER_USAGE))
        answer = self._board.read(self._power_metric)
        instant = Instant.since(before_s, self._monotonic)
        if answer.value is None:
            return PowerReading(instant, None, None, reason=answer.reason)
        return PowerReading(instant, answer.value, self._power_method)

    def read_state(self) -> BoardState:
        """Clocks, temperature, utilisation, limits, throttle reasons and processes."""
        now = Instant.now(self._monotonic)
        metrics = (
            Metric.SM_CLOCK,
            Metric.MEMORY_CLOCK,
            Metric.TEMPERATURE,
            Metric.UTILIZATION,
            Metric.POWER_LIMIT,
            Metric.CLOCK_LIMIT,
            Metric.MEMORY_CLOCK_LIMIT,
            Metric.THROTTLE_REASONS,
            Metric.PROCESSES,
        )
        answers = {metric: self._board.read(metric) for metric in metrics if self.capabilities.has(metric)}
        values = {metric: answer.value for metric, answer in answers.items()}
        reasons = [
            f"{metric.value}: {reason}" for metric, reason in self.capabilities.missing if metric in metrics
        ]
        reasons += [f"{metric.value}: {a.reason}" for metric, a in answers.items() if a.value is None]
        return BoardState(
            at=now.at,
            monotonic_s=now.monotonic_s,
            sm_clock_mhz=values.get(Metric.SM_CLOCK),
            memory_clock_mhz=values.get(Metric.MEMORY_CLOCK),
            temperature_c=values.get(Metric.TEMPERATURE),
            utilization_percent=values.get(Metric.UTILIZATION),
            power_limit_mw=values.get(Metric.POWER_LIMIT),
            clock_limit_mhz=values.get(Metric.CLOCK_LIMIT),
            memory_clock_limit_mhz=values.get(Metric.MEMORY_CLOCK_LIMIT),
            throttle_reasons=values.get(Metric.THROTTLE_REASONS),
            process_ids=values.get(Metric.PROCESSES),
            reasons=tuple(reasons),
        )

    def close(self) -> None:
        """Ends the thread, if there is one, and gives NVML back."""
        if self._accumulator is not None:
            self._accumulator.close()
        self._session.close()

    @property
    def _epoch(self) -> int:
        return self._session.generation + self._losses

    def _integrated(self, accumulator: PowerAccumulator) -> EnergyReading:
        total = accumulator.read()
        known = total.energy_mj is not None
        return EnergyReading(
            instant=total.instant,
            energy_mj=total.energy_mj,
            method="nvml.power" if known else None,
            scope=self._scope if known else None,
            uncertainty_mj=0.0,
            lag_s=0.0,
            reason=total.reason if not known else self._device.reason,
            accumulated_mj=total.accumulated_mj,
            epoch=total.epoch + self._epoch,
            flags=self._flags,
        )

    def _choose_power(self) -> tuple[Metric | None, PowerMethod | None]:
        if self._scope == "module":
            return (
                (Metric.MODULE_POWER, "instant")
                if self.capabilities.has(Metric.MODULE_POWER)
                else (None, None)
            )
        if self.capabilities.has(Metric.POWER_INSTANT):
            return Metric.POWER_INSTANT, "instant"
        if self.capabilities.has(Metric.POWER_AVERAGE):
            return Metric.POWER_AVERAGE, "average"
        if self.capabilities.has(Metric.POWER_USAGE):
            return Metric.POWER_USAGE, self._board.power_usage_method()
        return None, None

    def _remarks(self, found: FoundBoard) -> str | None:
        remarks = []
        counter = self.capabilities.why_not(self._energy_metric)
        if counter and self._power_metric is not None:
            remarks.append(f"no energy counter ({counter}), so sampled power stands for it")
        elif counter:
            power = self.capabilities.why_not(Metric.POWER_USAGE)
            remarks.append(f"no energy counter ({counter}) and no power ({power})")
            if self._scope == "module" and self.capabilities.has(Metric.ENERGY):
                remarks.append("the GPU alone can be metered with `measurement.gpu_scope: gpu`")
        remarks += [
            f"no {metric.value} is told ({reason})"
            for metric, reason in self.capabilities.missing
            if metric in (Metric.CLOCK_LIMIT, Metric.MEMORY_CLOCK_LIMIT)
        ]
        if found.divided:
            remarks.append(
                f"energy of the whole board, of which {found.mig_uuid or 'what computes here'} is a slice"
            )
        if self._scope == "gpu" and self.capabilities.has(Metric.MODULE_POWER):
            remarks.append(
                "the GPU alone; its module, CPU included, can be metered with `measurement.gpu_scope: module`"
            )
        if self._gpus > 1:
            remarks.append(f"energy of the whole module, which has {self._gpus} GPUs")
        return "; ".join(remarks) or None

    def _measure_period_s(self, sleep: Callable[[float], None]) -> float:
        def moving() -> float | None:
            answer = self._read_counter()
            return None if isinstance(answer, Answer) else answer

        period_s = measured_period_s(moving, self._monotonic, sleep)
        if period_s is None:
            log.warning(
                "board %s: the energy counter was not seen to move twice; its period is taken to be %.1f s",
                self._board.uuid,
                ASSUMED_PERIOD_S,
            )
        return period_s or ASSUMED_PERIOD_S


def _gpus_of_module(name: str) -> int:
    return next((gpus for part, gpus in GPUS_OF_A_MODULE.items() if part in name), 1)


def open_nvml_meter(uuid: str, host: str, scope: GpuScope = "gpu", *, power_only: bool = False) -> NvmlMeter:
    """Opens the meter of a board.

    Args:
        uuid: UUID of the board or of a MIG slice, as `find_board` takes it.
        host: Name of this host.
        scope: `gpu`, or `module` for the whole module of a superchip.
        power_only: Whether only power will be read.

    Raises:
        MeterUnavailable: NVML can't be opened on this host.
        DeviceNotFound: No such board, or more than one.
    """
    session = NvmlSession()
    session.open()
    try:
        return NvmlMeter(session, find_board(session, uuid), host, scope, power_only=power_only)
    except BaseException:
        session.close()
        raise
