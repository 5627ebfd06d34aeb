"""Ghostwatt's service and MLflow's server behind one interface, for `benchmarks/service.py`.

Both are real processes with one worker each, asked over HTTP by the same clients. Ghostwatt's cluster is an
address where nothing answers, so that Ray takes none of the cores: what is submitted stays queued.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlencode

import phantom_core
from benchmarks.http_load import Ask, ask_once
from benchmarks.main_job import service_process
from client.service_process import free_port
from phantom_core.protocol import Assignment
from services import leases
from services.database import Database

JSON = {"Content-Type": "application/json"}
READY_S = 180.0
METRIC = "train_loss"
POINTS_PER_BATCH = 1_000
EVENTS_PER_BATCH = 10
"""Ghostwatt's jobs send points in events as they come; MLflow takes one list."""


class Server(Protocol):
    """One tracking server under load."""

    @property
    def url(self) -> str:
        """Where it listens."""

    def version(self) -> str:
        """Of the server."""

    def create(self, number: int) -> Ask:
        """Creates a run; Ghostwatt: an experiment of one."""

    def begin_runs(self, count: int) -> Sequence["Target"]:
        """Makes runs that take metrics."""

    def search(self) -> Ask:
        """The last hundred runs with a tag."""


class Target(Protocol):
    """A run that takes metrics and gives them back."""

    def batch(self, number: int) -> Ask:
        """The number-th thousand points."""

    def history(self, points: int) -> Ask:
        """Its points."""


SPEC = {
    "task": {"kind": "digits"},
    "model": {"width": 64},
    "training": {"stop": {"kind": "steps", "steps": 100}},
    "arms": [{"strategy": "tensor", "name": "tensor", "world_size": 2}],
    "controls": False,
    "measurement": {"rounds": 1},
    "tags": {"team": "load"},
}


@dataclass(frozen=True)
class GhostwattRun:
    """A run of Ghostwatt with its job's token."""

    experiment_id: str
    run_id: str
    token: str

    def batch(self, number: int) -> Ask:
        """See `Target`."""
        each = POINTS_PER_BATCH // EVENTS_PER_BATCH
        first = number * POINTS_PER_BATCH
        events = [
            {
                "subject_id": self.run_id,
                "attempt": 1,
                "source": "rank-0",
                "seq": number * EVENTS_PER_BATCH + part,
                "at": "2026-01-01T00:00:00Z",
                "payload": {
                    "kind": "metrics",
                    "points": [
                        {"step": step, "name": METRIC, "value": 1.0 / (1 + step)}
                        for step in range(first + part * each, first + (part + 1) * each)
                    ],
                },
            }
            for part in range(EVENTS_PER_BATCH)
        ]
        body = json.dumps({"experiment_id": self.experiment_id, "events": events}).encode()
        return Ask("POST", "/internal/v1/events", body, JSON | {"Authorization": f"Bearer {self.token}"})

    def history(self, points: int) -> Ask:
        """See `Target`."""
        return Ask(
            "GET", f"/v1/runs/{self.run_id}/metrics?{urlencode({'name': METRIC, 'max_points': points})}"
        )


@dataclass(frozen=True)
class Ghostwatt:
    """Ghostwatt's service."""

    url: str
    database_url: str

    def version(self) -> str:
        """See `Server`."""
        return phantom_core.__version__

    def create(self, number: int) -> Ask:
        """See `Server`."""
        body = json.dumps(SPEC | {"name": f"load {number}"}).encode()
        return Ask("POST", "/v1/experiments", body, JSON)

    def begin_runs(self, count: int) -> list[GhostwattRun]:
        """See `Server`: leases as a second service process on the database would."""
        runs = []
        with Database(self.database_url) as database:
            for number in range(count):
                ask_once(self.url, self.create(number))
                lease = leases.claim(database, "benchmark", 3_600)
                assert lease is not None, "another dispatcher was quicker"
                token = leases.begin_attempt(database, lease).token
                leases.mark_starting(database, lease, lease.experiment_id)
                headers = {"Authorization": f"Bearer {token}"}
                path = f"/internal/v1/experiments/{lease.experiment_id}/assignment"
                told = Assignment.model_validate_json(ask_once(self.url, Ask("GET", path, None, headers)))
                runs.append(GhostwattRun(lease.experiment_id, told.runs[0].run_id, token))
        return runs

    def search(self) -> Ask:
        """See `Server`."""
        return Ask("GET", "/v1/experiments?" + urlencode({"tag": "team=load", "limit": 100}))


@dataclass(frozen=True)
class Bare:
    """A server that stores nothing."""

    url: str

    def create(self, number: int) -> Ask:
        """The same request as Ghostwatt's."""
        return Ghostwatt(self.url, "").create(number)


@dataclass(frozen=True)
class MlflowRun:
    """A run of MLflow."""

    run_id: str

    def batch(self, number: int) -> Ask:
        """See `Target`."""
        first = number * POINTS_PER_BATCH
        metrics = [
            {"key": METRIC, "value": 1.0 / (1 + step), "timestamp": 1_767_225_600_000, "step": step}
            for step in range(first, first + POINTS_PER_BATCH)
        ]
        body = json.dumps({"run_id": self.run_id, "metrics": metrics}).encode()
        return Ask("POST", "/api/2.0/mlflow/runs/log-batch", body, JSON)

    def history(self, points: int) -> Ask:
        """See `Target`."""
        query = urlencode({"run_id": self.run_id, "metric_key": METRIC, "max_results": points})
        return Ask("GET", f"/api/2.0/mlflow/metrics/get-history?{query}")


@dataclass(frozen=True)
class Mlflow:
    """MLflow's tracking server."""

    url: str

    def version(self) -> str:
        """See `Server`."""
        return ask_once(self.url, Ask("GET", "/version")).decode()

    def create(self, number: int) -> Ask:
        """See `Server`."""
        body = {
            "experiment_id": "0",
            "start_time": 1_767_225_600_000,
            "run_name": f"load {number}",
            "tags": [{"key": "team", "value": "load"}],
        }
        return Ask("POST", "/api/2.0/mlflow/runs/create", json.dumps(body).encode(), JSON)

    def begin_runs(self, count: int) -> list[MlflowRun]:
        """See `Server`."""
        return [
            MlflowRun(json.loads(ask_once(self.url, self.create(number)))["run"]["info"]["run_id"])
            for number in range(count)
        ]

    def search(self) -> Ask:
        """See `Server`."""
        body = {"experiment_ids": ["0"], "filter": "tags.team = 'load'", "max_results": 100}
        return Ask("POST", "/api/2.0/mlflow/runs/search", json.dumps(body).encode(), JSON)


@contextmanager
def serving_ghostwatt(folder: Path, database_url: str) -> Iterator[Ghostwatt]:
    """Starts the service and ends it."""
    port = free_port(0)
    url = f"http://127.0.0.1:{port}"
    with service_process(
        folder / "ghostwatt",
        GHOSTWATT_DATABASE_URL=database_url,
        GHOSTWATT_PORT=str(port),
        GHOSTWATT_RAY_ADDRESS=f"http://127.0.0.1:{free_port(0)}",
    ) as (process, log):
        _wait_until_up(process, log, url, "/healthz")
        yield Ghostwatt(url, database_url)


@contextmanager
def serving_bare(folder: Path) -> Iterator[Bare]:
    """Starts `benchmarks/bare_server.py` with the web server that Ghostwatt has, and ends it."""
    port = free_port(0)
    command = [sys.executable, "-m", "uvicorn", "benchmarks.bare_server:app", "--port", str(port)]
    command += ["--no-access-log", "--log-level", "warning"]
    with _child(command, folder / "bare.log") as process:
        url = f"http://127.0.0.1:{port}"
        _wait_until_up(process, folder / "bare.log", url, "/healthz")
        yield Bare(url)


@contextmanager
def serving_mlflow(folder: Path, database_url: str, python: Path) -> Iterator[Mlflow]:
    """Starts `mlflow server` from another environment and ends it."""
    port = free_port(0)
    url = f"http://127.0.0.1:{port}"
    command = [str(python), "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1", "--backend-store-uri", database_url.replace("+psycopg:", "+psycopg2:")]
    command += ["--default-artifact-root", str(folder / "artifacts")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    log = folder / "mlflow.log"
    with _child(command, log, environment) as process:
        _wait_until_up(process, log, url, "/health")
        yield Mlflow(url)


@contextmanager
def _child(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        # The whole session: a server may be a child of its command.
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)


def _wait_until_up(process: subprocess.Popen[bytes], log: Path, url: str, health: str) -> None:
    end = time.monotonic() + READY_S
    while True:
        try:
            ask_once(url, Ask("GET", health))
        except (OSError, RuntimeError) as error:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(
                    f"no server at {url}: {log.read_text(errors='replace')[-3000:]}"
                ) from error
            # What a start is measured by must not be coarser than what is asked of it.
            time.sleep(0.02)
        else:
            return
