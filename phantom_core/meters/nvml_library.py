"""NVML as one process uses it: opened when first needed, opened again after a fork or a driver reload.

The binding is `nvidia-ml-py` (`import pynvml`); it is imported here, when a session is opened, and nowhere
else. NVML counts its own `nvmlInit` calls, so every session opens and closes for itself alone.
"""

import importlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from phantom_core.meters.base import MeterUnavailable

REOPEN_INTERVAL_S = 1.0
"""A driver that is gone is asked for again at most this often."""

T = TypeVar("T")
U = TypeVar("U")


class Answer(NamedTuple, Generic[T]):
    """What NVML said: a value, or why there is none."""

    value: T | None
    """The value; None if there is none."""
    reason: str | None = None
    """Why there is none."""
    lasting: bool = False
    """Whether asking again can't help: not supported, or not permitted."""
    lost: bool = False
    """Whether the board or the driver went away."""

    def map(self, function: Callable[[T], U]) -> "Answer[U]":
        """The same answer with its value converted."""
        if self.value is None:
            return Answer(None, self.reason, self.lasting, self.lost)
        return Answer(function(self.value))


class NvmlSession:
    """NVML opened once by one process.

    `binding` is the module `pynvml` once it is open. `generation` counts how often it was opened: counters read
    in different generations have no difference, since a driver that was reloaded starts them over.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._stale = False
        self._closed = False
        self._last_open_s = -REOPEN_INTERVAL_S
        self._failure: str | None = None
        self.binding: Any = None
        self.generation = 0

    def open(self) -> None:
        """Loads the library and opens it.

        Raises:
            MeterUnavailable: No driver, no permission, or versions that don't fit; the message says how.
        """
        with self._lock:
            reason = self._initialise()
        if reason is not None:
            raise MeterUnavailable(reason)

    def is_open_in(self, pid: int) -> bool:
        """Whether that process has NVML open, and nothing says that it must be opened again."""
        return self._pid == pid and not self._stale

    def ready(self) -> str | None:
        """Makes sure that this process has NVML open, opening it again if need be.

        After a fork the child opens NVML for itself and leaves the parent's alone. After a driver
        reload it is closed and opened again, at most once a second.

        Returns:
            None if it is open, else why not.
        """
        if self.is_open_in(os.getpid()):
            return None
        forked = self._pid is not None and self._pid != os.getpid()
        if forked:
            # A lock that another thread held while the process forked would stay held in the child.
            self._lock = threading.Lock()
        with self._lock:
            if self._closed:
                return "the meter is closed"
            if not forked and not self._stale and self._pid is not None:
                return None
            if not forked and self._monotonic() - self._last_open_s < REOPEN_INTERVAL_S:
                return self._failure or "NVML is being opened again"
            if not forked and self._pid is not None:
                self._shut_down()
            return self._initialise()

    def ask(self, function: str, *arguments: Any) -> Answer[Any]:
        """Calls one function of the binding.

        Args:
            function: Its name, such as `nvmlDeviceGetPowerUsage`.
            arguments: Its arguments.

        Returns:
            The value, or the reason why there is none; never raises for an error that NVML reports.
        """
        closed = self.ready()
        if closed is not None:
            return Answer(None, closed, lost=True)
        try:
            return Answer(getattr(self.binding, function)(*arguments))
        except self.binding.NVMLError as error:
            return self.failed(function, error.value)

    def failed(self, what: str, code: int) -> Answer[Any]:
        """The answer that an NVML return code stands for.

        Args:
            what: The function or field that returned it.
            code: NVML's return code, not NVML_SUCCESS.
        """
        pynvml = self.binding
        if code in (
            pynvml.NVML_ERROR_UNINITIALIZED,
            pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
            pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        ):
            self._stale = True
            return Answer(
                None, f"{what}: the driver was unloaded or replaced ({_text(pynvml, code)})", lost=True
            )
        if code in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED):
            return Answer(
                None,
                f"{what}: the board fell off the bus or needs a reset ({_text(pynvml, code)})",
                lost=True,
            )
        if code == pynvml.NVML_ERROR_NO_PERMISSION:
            return Answer(None, f"{what}: not permitted to this user ({_text(pynvml, code)})", lasting=True)
        lasting = code in (
            pynvml.NVML_ERROR_NOT_SUPPORTED,
            pynvml.NVML_ERROR_DEPRECATED,
            pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            pynvml.NVML_ERROR_INVALID_ARGUMENT,
            pynvml.NVML_ERROR_NOT_FOUND,
        )
        return Answer(None, f"{what}: {_text(pynvml, code)}", lasting=lasting)

    def close(self) -> None:
        """Gives NVML back; safe to call twice, and does nothing in a process that did not open it."""
        with self._lock:
            self._closed = True
            if self._pid == os.getpid():
                self._shut_down()

    def _initialise(self) -> str | None:
        self._last_open_s = self._monotonic()
        try:
            pynvml = self.binding = importlib.import_module("pynvml")
        except ImportError as error:
            self._failure = f"the package nvidia-ml-py can't be imported ({error}); pip install nvidia-ml-py"
            return self._failure
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._failure = _why_not_open(pynvml, error.value)
            self._pid, self._stale = None, True
            return self._failure
        self._pid, self._stale, self._failure = os.getpid(), False, None
        self.generation += 1
        return None

    def _shut_down(self) -> None:
        self._pid = None
        try:
            self.binding.nvmlShutdown()
        except self.binding.NVMLError:
            self._failure = "NVML was gone already when it was closed"


def _why_not_open(pynvml: Any, code: int) -> str:
    ways_out = {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver is installed (libnvidia-ml.so.1 is missing)",
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is installed but not loaded (try nvidia-smi)",
        pynvml.NVML_ERROR_NO_PERMISSION: "this user may not open the NVIDIA driver (see /dev/nvidiactl)",
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was updated and not reloaded; reboot the host",
    }
    return f"NVML can't be opened: {ways_out.get(code, _text(pynvml, code))}"


def _text(pynvml: Any, code: int) -> str:
    return str(pynvml.NVMLError(code))
