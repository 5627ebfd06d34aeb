"""A real service in a process of its own, for tests that need all of it."""

import fcntl
import os
import secrets
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

READY_S = 180.0
FIRST_PORT, PORTS = 20_000, 12_000
"""Beyond those of Ray's workers, and below those that systems choose from."""
ENDED = {"succeeded", "failed", "lost", "cancelled"}
"""States of an experiment that are final."""


@dataclass
class RunningService:
    """A service that answers, and how to look at it."""

    url: str
    process: subprocess.Popen[bytes]
    data_dir: Path
    log: Path

    @property
    def database(self) -> Path:
        return self.data_dir / "ghostwatt.sqlite3"

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """What its SQLite database answers."""
        with sqlite3.connect(self.database) as connection:
            return connection.execute(query, values).fetchall()

    def family(self) -> list[psutil.Process]:
        """Everything that it has started, Ray and its workers among it."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def processes(self, words: str) -> list[psutil.Process]:
        """Those of its family whose title or command holds the words."""
        return [process for process in self.family() if words in title(process)]

    def get(self, path: str) -> Any:
        response = httpx.get(self.url + path, timeout=30)
        response.raise_for_status()
        return response.json()

    def submit(self, spec: Mapping[str, Any]) -> str:
        response = httpx.post(self.url + "/v1/experiments", json=spec, timeout=30)
        assert response.status_code == 202, response.text
        assert response.headers["location"].endswith(response.json()["id"])
        return str(response.json()["id"])

    def post(self, path: str) -> None:
        httpx.post(self.url + path, timeout=60).raise_for_status()

    def delete(self, path: str) -> None:
        httpx.delete(self.url + path, timeout=60).raise_for_status()

    def wait_for(self, identifier: str, states: set[str], deadline_s: float = 240) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            experiment: dict[str, Any] = self.get(f"/v1/experiments/{identifier}")
            return experiment if experiment["state"] in states else None

        found: dict[str, Any] = wait_until(look, deadline_s, f"{identifier} in {sorted(states)}", self.tell)
        return found

    def wait_until_ready(self) -> None:
        wait_until(lambda: _can_run(self), READY_S, "a service that can run experiments", self.tell)

    def is_degraded(self) -> bool:
        """Whether it answers, and can run nothing now."""
        assert self.process.poll() is None, self.tell()
        try:
            return bool(self.get("/readyz")["status"] == "degraded")
        except httpx.HTTPError:
            return False

    def tell(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        return self.process.wait(timeout=60)


def title(process: psutil.Process) -> str:
    """A process's command as it shows itself; empty once it is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits for nothing but its parent."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def free_port() -> int:
    """A port of loopback that nobody listens on now, and that no other test on this machine is given meanwhile.

    One of those that no system gives to whoever names none: of these, any might be gone before it is used.
    """
    folder = Path(tempfile.gettempdir()) / f"ghostwatt-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    while True:
        port = FIRST_PORT + secrets.randbelow(PORTS)
        # Kept open and locked until this process ends: whoever is to listen does so seconds later, or again.
        held = os.open(folder / str(port), os.O_CREAT | os.O_RDWR)
        with suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.create_server(("127.0.0.1", port)):
                return port
        os.close(held)


def start_service(folder: Path, port: int, module: str = "api", **settings: str) -> RunningService:
    """Starts `python -m <module> serve`; a log that is there already is added to."""
    data_dir, log = folder / "data", folder / "service.log"
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith(("GHOSTWATT_", "RAY_"))
    }
    environment = inherited | {
        "GHOSTWATT_DATA_DIR": str(data_dir),
        "GHOSTWATT_PORT": str(port),
        "GHOSTWATT_POLL_INTERVAL_S": "0.5",
        **settings,
    }
    with log.open("ab") as output:
        # The other end closes with this process, however it ends, and the service with it.
        reader, _ = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", module, "serve", "--until-stdin-closes"],
            env=environment,
            stdin=reader,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        os.close(reader)
    return RunningService(f"http://127.0.0.1:{port}", process, data_dir, log)


@contextmanager
def running_service(folder: Path, module: str = "api", **settings: str) -> Iterator[RunningService]:
    """A service on a free port, from when experiments can run."""
    service = start_service(folder, free_port(), module, **settings)
    try:
        service.wait_until_ready()
        yield service
    finally:
        if service.process.poll() is None:
            service.end(signal.SIGTERM)


def wait_until(
    look: Callable[[], Any],
    deadline_s: float,
    what: str,
    tell: Callable[[], str] = lambda: "",
    *,
    every_s: float = 0.25,
) -> Any:
    """The first true value that `look` returns."""
    end = time.monotonic() + deadline_s
    while True:
        is_last = time.monotonic() >= end
        value = look()
        if value:
            return value
        if is_last:
            raise AssertionError(f"no {what} within {deadline_s:.0f} s\n{tell()}")
        time.sleep(every_s)


def _can_run(service: RunningService) -> bool:
    assert service.process.poll() is None, service.tell()
    try:
        checks = service.get("/readyz")["checks"]
    except httpx.HTTPError:
        return False
    return all(check["ok"] for check in checks)


def processes_of(mark: str) -> list[psutil.Process]:
    """Processes whose command line or working files name the mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and mark in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found
