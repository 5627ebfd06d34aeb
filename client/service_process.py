"""The service as a child of the command: started in a session of its own, ended gently, never left behind."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import psutil

STOP_S = 30.0
"""Seconds that the service has for ending Ray and itself before it is killed."""
GRACE_S = 3.0
"""Seconds that the child's own children have after it has ended."""
CLIENT_VARIABLES = frozenset({"GHOSTWATT_URL", "GHOSTWATT_API_KEY"})
"""Variables that are the command's own; the service refuses names that it doesn't know."""


def free_port(preferred: int, host: str = "127.0.0.1") -> int:
    """The preferred port if nothing listens there, else one that the system chooses."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError(f"no port is free on {host}")


def service_environment(
    settings: Mapping[str, str], without: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment of a service process.

    Args:
        settings: `GHOSTWATT_*` variables to set.
        without: Names to drop from what is inherited.
        environment: What is inherited; None takes this process's.
    """
    inherited = dict(os.environ if environment is None else environment)
    for name in (*CLIENT_VARIABLES, *without):
        inherited.pop(name, None)
    return {**inherited, **settings}


class ServiceProcess:
    """`python -m api serve` as a context manager.

    The child leads a session of its own, so a ctrl-c of the terminal reaches it only through `stop`. Its
    standard input is a pipe that closes when this process ends, however it ends: the child then ends as well.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        log: Path | None = None,
        command: Sequence[str] = (sys.executable, "-m", "api", "serve", "--until-stdin-closes"),
        stop_s: float = STOP_S,
    ) -> None:
        """Says what to start.

        Args:
            environment: All variables of the child.
            log: File for the child's output; None leaves it on this process's.
            command: The child's command line.
            stop_s: Seconds from a gentle request to end until the child and all of its own are killed.
        """
        self.log = log
        self._environment = dict(environment)
        self._command = list(command)
        self._stop_s = stop_s
        self._process: subprocess.Popen[bytes] | None = None
        self.ended_gently = True
        """Whether everything ended by itself when asked; known after `stop`."""

    def __enter__(self) -> Self:
        output: IO[bytes] | None = None
        if self.log is not None:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            output = self.log.open("ab")
        try:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT if output else None,
                start_new_session=True,
            )
        finally:
            if output is not None:
                output.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The child's process id."""
        assert self._process is not None, "the service process was not started"
        return self._process.pid

    def exit_code(self) -> int | None:
        """The child's exit code; None while it runs."""
        assert self._process is not None, "the service process was not started"
        return self._process.poll()

    def last_lines(self, count: int = 15) -> str:
        """The end of the child's log, for a person."""
        if self.log is None or not self.log.exists():
            return ""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-count:])

    def stop(self) -> None:
        """Asks the child to end, waits, and kills what is left of it and its own; safe to call twice."""
        process = self._process
        if process is None:
            return
        family = _family(process.pid)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        gently = _wait(process, self._stop_s)
        if not gently:
            family = {*family, *_family(process.pid)}
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()
        survivors = _still_running(family, GRACE_S if gently else 0)
        for member in survivors:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(survivors, timeout=GRACE_S)
        self.ended_gently = self.ended_gently and gently and not survivors


def _wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while process.poll() is None:
        if time.monotonic() >= end:
            return False
        time.sleep(0.05)
    return True


def _still_running(family: set[psutil.Process], seconds: float) -> list[psutil.Process]:
    _, alive = psutil.wait_procs(family, timeout=seconds)
    return [member for member in alive if not _is_zombie(member)]


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _family(pid: int) -> set[psutil.Process]:
    """A process's descendants; psutil tells a reused process id by its start time."""
    try:
        return set(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return set()
