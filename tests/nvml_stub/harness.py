"""Builds the NVML stub, writes its scripts, and drives the unmodified binding through it.

Two ways to use it: `loaded` puts it under the binding in this process, with a clock that the test moves;
`environment` lets other processes load it by name, as they would load the driver's, in real time.
"""

import contextlib
import ctypes
import dataclasses
import importlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from phantom_core.meters.base import Instant

SOURCE = Path(__file__).with_name("nvml_stub.c")
SCRIPT_VARIABLE = "GHOSTWATT_NVML_STUB"
ALWAYS = (-1e9, 1e9)

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 1, 2, 3, 4, 6
DRIVER_NOT_LOADED, TIMEOUT, FUNCTION_NOT_FOUND, GPU_IS_LOST, LIB_RM_VERSION_MISMATCH = 9, 10, 13, 15, 18
DEPRECATED, UNKNOWN = 26, 999

Span = tuple[float, float]


@dataclass(frozen=True)
class Failure:
    """A function, or a field as `field:<id>:<scope>`, that answers with an error for a while."""

    what: str
    code: int
    when: Span = ALWAYS


@dataclass(frozen=True)
class StubBoard:
    """A board; times in seconds since the script's origin."""

    uuid: str = "GPU-11111111-1111-1111-1111-111111111111"
    name: str = "NVIDIA H200"
    power: tuple[tuple[float, float], ...] = ((0.0, 100.0),)
    """Corners (seconds, watts) of its power; held before the first and after the last."""
    period_s: float = 0.1
    counter_mj: int = 5_000_000
    limit_w: float = 700.0
    clock_limits: tuple[tuple[int, int, Span], ...] = ((0, 1980, ALWAYS), (2, 2619, ALWAYS))
    """Applications clocks: type of clock, MHz, when; not supported at other times."""
    max_boosts: tuple[tuple[int, int], ...] = ((0, 1980), (2, 2619))
    """What the board's maker allows at most: type of clock, MHz."""
    memory_bytes: int = 150_000_000_000
    capability: tuple[int, int] = (9, 0)
    architecture: int = 9
    module_extra_w: float = 0.0
    resets: tuple[float, ...] = ()
    lost: Span | None = None
    failures: tuple[Failure, ...] = ()
    processes: tuple[tuple[int, Span], ...] = ()
    mortals: tuple[int, ...] = ()
    """Processes of this host that are on the board for as long as they live."""
    throttles: tuple[tuple[int, Span], ...] = ()
    utilizations: tuple[tuple[int, Span], ...] = ()
    slices: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        lines = [
            f"board {self.uuid}",
            f"name {self.name}",
            f"memory {self.memory_bytes}",
            f"period {self.period_s!r}",
            f"counter {self.counter_mj}",
            f"limit {round(1000 * self.limit_w)}",
            f"capability {self.capability[0]} {self.capability[1]}",
            f"architecture {self.architecture}",
            f"module_extra {self.module_extra_w!r}",
        ]
        lines += [f"power {t!r} {watts!r}" for t, watts in self.power]
        lines += [
            f"clock_limit {kind} {mhz} {span[0]!r} {span[1]!r}" for kind, mhz, span in self.clock_limits
        ]
        lines += [f"max_boost {kind} {mhz}" for kind, mhz in self.max_boosts]
        lines += [f"reset {t!r}" for t in self.resets]
        lines += [f"lost {self.lost[0]!r} {self.lost[1]!r}"] if self.lost else []
        lines += [f"fail {f.what} {f.code} {f.when[0]!r} {f.when[1]!r}" for f in self.failures]
        lines += [f"process {pid} {span[0]!r} {span[1]!r}" for pid, span in self.processes]
        lines += [f"mortal {pid} {ALWAYS[0]!r} {ALWAYS[1]!r}" for pid in self.mortals]
        lines += [f"throttle {bits} {span[0]!r} {span[1]!r}" for bits, span in self.throttles]
        lines += [f"utilization {share} {span[0]!r} {span[1]!r}" for share, span in self.utilizations]
        return [*lines, *(f"slice {uuid}" for uuid in self.slices)]


@dataclass(frozen=True)
class StubScript:
    """What the driver says over time."""

    boards: tuple[StubBoard, ...] = (StubBoard(),)
    driver: str = "570.86.15"
    init_code: int = 0
    reloads: tuple[float, ...] = ()
    failures: tuple[Failure, ...] = ()
    fork_unsafe: bool = False
    latency_s: float = 0.0
    """How long every call takes."""
    manual: bool = False
    """Whether time is what the test sets; else seconds since `origin_s`."""
    origin_s: float = field(default_factory=time.monotonic)
    """Second 0 on the host's monotonic clock."""

    def write(self, path: Path) -> Path:
        lines = [
            f"driver {self.driver}",
            f"clock {'manual' if self.manual else 'real'}",
            f"origin {self.origin_s!r}",
            f"init {self.init_code}",
            f"latency {self.latency_s!r}",
            *(["fork_unsafe"] if self.fork_unsafe else []),
            *(f"reload {t!r}" for t in self.reloads),
            *(f"fail {f.what} {f.code} {f.when[0]!r} {f.when[1]!r}" for f in self.failures),
            *(line for board in self.boards for line in board.lines()),
        ]
        path.write_text("\n".join(lines) + "\n")
        return path


class Clock:
    """Time that a test moves, for the stub and for what reads it."""

    def __init__(self, library: ctypes.CDLL | None = None) -> None:
        self._library = library
        self.now_s = 0.0
        self.set(0.0)

    def set(self, seconds: float) -> None:
        self.now_s = seconds
        if self._library is not None:
            self._library.nvmlStubSetTime(ctypes.c_double(seconds))

    def sleep(self, seconds: float) -> None:
        self.set(self.now_s + seconds)

    def monotonic(self) -> float:
        return self.now_s

    def instant(self) -> Instant:
        return Instant.now(self.monotonic)


@dataclass(frozen=True)
class LoadedStub:
    """The stub under the binding of this process."""

    clock: Clock
    library: ctypes.CDLL

    def calls(self, function: str) -> int:
        """How often a function was called since the process started."""
        count = self.library.nvmlStubCalls
        count.restype = ctypes.c_ulong
        return int(count(function.encode()))


@dataclass(frozen=True)
class NvmlStub:
    """The compiled stub."""

    folder: Path
    """Holds `libnvidia-ml.so.1`: put it on LD_LIBRARY_PATH."""

    def environment(self, script: StubScript, path: Path) -> dict[str, str]:
        """Variables under which another process finds the stub where it looks for the driver.

        Args:
            script: What the driver says.
            path: Where the script is written.
        """
        searched = os.environ.get("LD_LIBRARY_PATH")
        return {
            SCRIPT_VARIABLE: str(script.write(path)),
            "LD_LIBRARY_PATH": f"{self.folder}:{searched}" if searched else str(self.folder),
        }

    def run(self, code: str, script: StubScript, path: Path) -> str:
        """Runs Python code in a process of its own that finds the stub by name; returns what it printed."""
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            env={**os.environ, **self.environment(script, path)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextlib.contextmanager
    def loaded(self, script: StubScript, path: Path) -> Iterator[LoadedStub]:
        """Puts the stub under this process's binding, with time in the test's hands.

        What uses it must have closed NVML as often as it opened it by the end.
        """
        pynvml: Any = importlib.import_module("pynvml")
        library = ctypes.CDLL(str(self.folder / "libnvidia-ml.so.1"))
        saved = pynvml.nvmlLib, dict(pynvml._nvmlGetFunctionPointer_cache)
        before = os.environ.get(SCRIPT_VARIABLE)
        os.environ[SCRIPT_VARIABLE] = str(dataclasses.replace(script, manual=True).write(path))
        pynvml.nvmlLib = library
        pynvml._nvmlGetFunctionPointer_cache.clear()
        left_open = 0
        try:
            yield LoadedStub(Clock(library), library)
        finally:
            while library.nvmlShutdown() == 0:
                left_open += 1
            pynvml.nvmlLib = saved[0]
            pynvml._nvmlGetFunctionPointer_cache.clear()
            pynvml._nvmlGetFunctionPointer_cache.update(saved[1])
            if before is None:
                del os.environ[SCRIPT_VARIABLE]
            else:
                os.environ[SCRIPT_VARIABLE] = before
        assert left_open == 0, f"NVML was left open {left_open} times"


def build_stub(folder: Path) -> NvmlStub:
    """Compiles the stub; without a compiler skips the test that asked, or fails it where CI is set."""
    compiler = shutil.which("cc")
    if compiler is None:
        message = "no C compiler (cc), so NVML's stub can't be built and NVML is not tested"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    library = folder / "libnvidia-ml.so.1"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{library.name}"]
    command = [compiler, *flags, "-o", str(library), str(SOURCE), "-lm", "-lpthread"]
    subprocess.run(command, check=True, timeout=120)
    return NvmlStub(folder)
