"""One board's figures as NVML gives them, each with its return code checked.

Power comes in three kinds. Field 186 is momentary, field 185 is a mean over about a second, and
`nvmlDeviceGetPowerUsage` is the mean on Ampere and newer except GA100, and momentary before (NVML API
reference). They are told apart by name everywhere.
"""

import os
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any

from phantom_core.meters.base import PowerMethod
from phantom_core.meters.nvml_library import Answer, NvmlSession

GPU_SCOPE = 0
"""NVML_POWER_SCOPE_GPU: the GPU with its memory."""
MODULE_SCOPE = 1
"""NVML_POWER_SCOPE_MODULE: a superchip's whole module, CPU included."""

GRAPHICS_CLOCK, MEMORY_CLOCK = 0, 2
"""NVML_CLOCK_GRAPHICS and NVML_CLOCK_MEM."""

Question = tuple[str, tuple[int, ...]]
"""A function of NVML and its arguments after the clock."""
CLOCK_LIMITS: tuple[Question, ...] = (
    ("nvmlDeviceGetApplicationsClock", ()),
    ("nvmlDeviceGetClock", (1,)),  # NVML_CLOCK_ID_APP_CLOCK_TARGET
    ("nvmlDeviceGetMaxCustomerBoostClock", ()),
)
"""Who may tell what a clock is limited to: what was set, then what the board's maker allows. NVML has no question for
the range that clocks were locked to (`nvmlDeviceSetGpuLockedClocks`)."""

VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of NVML's value union in the order of its type numbers: double, unsigned int, ..."""


class Metric(StrEnum):
    """What can be asked of a board; support of each is probed once."""

    ENERGY = "energy counter"
    MODULE_ENERGY = "module energy counter"
    POWER_INSTANT = "instant power"
    POWER_AVERAGE = "average power"
    POWER_USAGE = "power usage"
    MODULE_POWER = "module power"
    UTILIZATION = "utilisation"
    SM_CLOCK = "multiprocessor clock"
    MEMORY_CLOCK = "memory clock"
    TEMPERATURE = "temperature"
    POWER_LIMIT = "power limit"
    CLOCK_LIMIT = "clock limit"
    MEMORY_CLOCK_LIMIT = "memory clock limit"
    THROTTLE_REASONS = "throttle reasons"
    PROCESSES = "compute processes"


class NvmlBoard:
    """A board (never a MIG slice) and the questions it answers."""

    def __init__(self, session: NvmlSession, uuid: str) -> None:
        self._session = session
        self._generation = -1
        self._handle: Any = None
        self.uuid = uuid
        """Full UUID of the board."""
        self._limit_questions: dict[int, tuple[Question, ...]] = {}
        self._readers: dict[Metric, Callable[[], Answer[Any]]] = {
            Metric.ENERGY: partial(self._call, "nvmlDeviceGetTotalEnergyConsumption"),
            Metric.MODULE_ENERGY: lambda: self._field("NVML_FI_DEV_ENERGY", MODULE_SCOPE),
            Metric.POWER_INSTANT: lambda: self._field("NVML_FI_DEV_POWER_INSTANT", GPU_SCOPE),
            Metric.POWER_AVERAGE: lambda: self._field("NVML_FI_DEV_POWER_AVERAGE", GPU_SCOPE),
            Metric.POWER_USAGE: lambda: self._call("nvmlDeviceGetPowerUsage").map(float),
            Metric.MODULE_POWER: lambda: self._field("NVML_FI_DEV_POWER_INSTANT", MODULE_SCOPE),
            Metric.UTILIZATION: lambda: self._call("nvmlDeviceGetUtilizationRates").map(
                lambda u: float(u.gpu)
            ),
            Metric.SM_CLOCK: lambda: self._call("nvmlDeviceGetClockInfo", 1).map(float),
            Metric.MEMORY_CLOCK: lambda: self._call("nvmlDeviceGetClockInfo", MEMORY_CLOCK).map(float),
            Metric.TEMPERATURE: lambda: self._call("nvmlDeviceGetTemperature", 0).map(float),
            Metric.POWER_LIMIT: lambda: self._call("nvmlDeviceGetEnforcedPowerLimit").map(float),
            Metric.CLOCK_LIMIT: partial(self._clock_limit, GRAPHICS_CLOCK),
            Metric.MEMORY_CLOCK_LIMIT: partial(self._clock_limit, MEMORY_CLOCK),
            Metric.THROTTLE_REASONS: self._throttle_reasons,
            Metric.PROCESSES: self._process_ids,
        }

    def read(self, metric: Metric) -> Answer[Any]:
        """Asks for one metric now.

        Returns:
            ENERGY and MODULE_ENERGY in millijoules, powers and their limit in milliwatts, clocks and their
            limits in MHz, temperature in degrees Celsius, utilisation in per cent (all floats);
            THROTTLE_REASONS as a tuple of names, PROCESSES as a tuple of process ids.
        """
        return self._readers[metric]()

    def counter(self, metric: Metric) -> Callable[[], int | Answer[Any]]:
        """A reader of one energy counter for windows, whose cost is paid at every edge of every one.

        Returns:
            A function that gives millijoules, or, if there are none, the answer that says why.
        """
        ask = self._readers[metric]
        if metric is not Metric.ENERGY:
            return lambda: _plain(ask())
        session, getpid = self._session, os.getpid
        binding: Any = None
        read: Callable[[Any], int] | None = None

        def read_counter() -> int | Answer[Any]:
            nonlocal binding, read
            # What `ready` and `_call` make sure of, without calling either where all is as it was.
            if session.is_open_in(getpid()) and self._generation == session.generation and read is not None:
                try:
                    return read(self._handle)
                except binding.NVMLError as error:
                    return session.failed("nvmlDeviceGetTotalEnergyConsumption", error.value)
            answer = _plain(ask())
            binding = session.binding
            read = getattr(binding, "nvmlDeviceGetTotalEnergyConsumption", None)
            return answer

        return read_counter

    def name(self) -> Answer[str]:
        """Model name."""
        return self._call("nvmlDeviceGetName").map(str)

    def memory_bytes(self) -> Answer[int]:
        """Memory of the board."""
        return self._call("nvmlDeviceGetMemoryInfo").map(lambda memory: int(memory.total))

    def power_usage_method(self) -> PowerMethod:
        """What `nvmlDeviceGetPowerUsage` means here: a mean on Ampere and newer, except GA100 (8.0)."""
        capability = self._call("nvmlDeviceGetCudaComputeCapability").value
        return "average" if capability is not None and tuple(capability) > (8, 0) else "instant"

    def _call(self, function: str, *arguments: Any) -> Answer[Any]:
        session = self._session
        closed = session.ready()
        if closed is not None:
            return Answer(None, closed, lost=True)
        if self._generation != session.generation:
            found = session.ask("nvmlDeviceGetHandleByUUID", self.uuid)
            if found.value is None:
                return Answer(None, f"board {self.uuid}: {found.reason}", lost=True)
            self._handle, self._generation = found.value, session.generation
        binding = session.binding
        try:
            return Answer(getattr(binding, function)(self._handle, *arguments))
        except binding.NVMLError as error:
            return session.failed(function, error.value)

    def _clock_limit(self, clock: int) -> Answer[float]:
        """Asks each in turn, until one answers: it alone is asked from then on, since each means another limit."""
        reasons = []
        for question in self._limit_questions.get(clock, CLOCK_LIMITS):
            function, arguments = question
            answer = self._call(function, clock, *arguments)
            if answer.value:
                self._limit_questions[clock] = (question,)
                return answer.map(float)
            if answer.value is None and not answer.lasting:
                return answer
            reasons.append(answer.reason or f"{function}: no limit is told (0 MHz)")
        return Answer(None, "; ".join(reasons), lasting=True)

    def _field(self, field: str, scope: int) -> Answer[float]:
        pynvml = self._session.binding
        answer = self._call("nvmlDeviceGetFieldValues", [(getattr(pynvml, field), scope)])
        if answer.value is None:
            return answer
        value = answer.value[0]
        if value.nvmlReturn != pynvml.NVML_SUCCESS:
            return self._session.failed(field, value.nvmlReturn)
        if value.valueType not in range(len(VALUE_MEMBERS)):
            return Answer(None, f"{field}: unknown value type {value.valueType}", lasting=True)
        return Answer(float(getattr(value.value, VALUE_MEMBERS[value.valueType])))

    def _process_ids(self) -> Answer[tuple[int, ...]]:
        # By their versions: the binding's name without one raises an error of its own kind on drivers before 510.
        answer = self._call("nvmlDeviceGetComputeRunningProcesses_v3")
        if answer.value is None and answer.lasting:
            older = self._call("nvmlDeviceGetComputeRunningProcesses_v2")
            answer = older if older.value is not None else answer
        return answer.map(lambda processes: tuple(sorted({process.pid for process in processes})))

    def _throttle_reasons(self) -> Answer[tuple[str, ...]]:
        answer = self._call("nvmlDeviceGetCurrentClocksEventReasons")
        if answer.value is None and answer.lasting:
            answer = self._call("nvmlDeviceGetCurrentClocksThrottleReasons")
        return answer.map(throttle_names)


def _plain(answer: Answer[Any]) -> int | Answer[Any]:
    return answer if answer.value is None else int(answer.value)


THROTTLE_BITS = {
    0x002: "application_clocks",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake",
    0x100: "display_clocks",
}
"""NVML's bits for why clocks are held down; bit 1 (idle) is no throttling."""

SLOWDOWNS = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"})
"""Reasons that mean heat or a failing supply: flag `throttled`."""
POWER_CAP = "sw_power_cap"
"""The board is at its power limit: flag `power_capped`."""


def throttle_names(bits: int) -> tuple[str, ...]:
    """Names of the set bits, unknown ones as `bit_0x...`, without `idle`."""
    known = [name for bit, name in THROTTLE_BITS.items() if bits & bit]
    rest = bits & ~(sum(THROTTLE_BITS) | 1)
    return (*known, *(f"bit_{hex(1 << n)}" for n in range(rest.bit_length()) if rest >> n & 1))
