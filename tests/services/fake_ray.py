"""Ray's job server as a process of its own, with jobs that are processes: `python -m tests.services.fake_ray`.

It speaks the part of Ray's REST API that `services.cluster` uses. Jobs start in milliseconds, since they are forked
from a process that has everything loaded, and die with their head as Ray's do. `POST /control` sets how it behaves
from then on (`Control`), `GET /control` tells what it was asked and which jobs it has.
"""

import argparse
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx

from tests.running import wait_until
from tests.services import fake_job
from tests.services.fake_job import Behaviour, Gate

STOP_S = 3.0
"""Seconds between SIGTERM and SIGKILL for a job that is stopped, as Ray's."""
UP_S = 120.0
"""Seconds that the server may take to come up on a busy machine."""


@dataclass(frozen=True)
class Control:
    """How the server behaves."""

    slow_s: float = 0.0
    """Seconds before every answer."""
    submit_first: bool = True
    """Whether a slow submission is carried out before the wait, or after it."""
    status: int = 200
    """What it answers instead of doing anything, if not 200."""
    submission_status: int = 200
    """The same of submissions alone."""
    cpus: int = 64
    """What its only node has."""


@dataclass
class Job:
    """A job and its process."""

    id: str
    process: BaseProcess
    stopped: bool = False

    @property
    def status(self) -> str:
        if self.process.exitcode is None:
            return "RUNNING"
        if self.stopped:
            return "STOPPED"
        return "SUCCEEDED" if self.process.exitcode == 0 else "FAILED"


@dataclass
class Head:
    """The server's state, which it forgets with its process."""

    folder: Path
    behaviour: Behaviour
    control: Control = field(default_factory=Control)
    jobs: dict[str, Job] = field(default_factory=dict)
    submissions: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["__main__", "tests.services.fake_job"])
        # What the first one waits for, its imports, is over before anybody's deadline begins.
        first = self._context.Process(target=fake_job.nothing)
        first.start()
        first.join()

    def submit(self, told: Mapping[str, Any]) -> tuple[int, object]:
        name = told["submission_id"]
        with self.lock:
            if name in self.jobs:
                return 400, f"Job with submission_id {name} already exists."
            self.submissions.append(name)
            process = self._context.Process(
                target=fake_job.run,
                args=(told["runtime_env"]["env_vars"], self.folder, name, self.behaviour),
            )
            process.start()
            self.jobs[name] = Job(name, process)
        return 200, {"job_id": name, "submission_id": name}

    def about(self, name: str, what: str, method: str) -> tuple[int, object]:
        with self.lock:
            job = self.jobs.get(name)
            if job is None:
                return 404, f"Job {name} does not exist"
            match method, what:
                case "GET", "":
                    return 200, {"submission_id": name, "status": job.status, "message": ""}
                case "GET", "logs":
                    log = self.folder / f"{name}.log"
                    return 200, {"logs": log.read_text() if log.exists() else ""}
                case "POST", "stop":
                    self._stop(job)
                    return 200, {"stopped": True}
        return 404, "no such page"

    def _stop(self, job: Job) -> None:
        if job.process.exitcode is not None or job.stopped:
            return
        job.stopped = True
        job.process.terminate()
        threading.Timer(STOP_S, job.process.kill).start()

    def told(self) -> dict[str, Any]:
        with self.lock:
            return {
                "jobs": [
                    {"id": job.id, "status": job.status, "pid": job.process.pid} for job in self.jobs.values()
                ],
                "submissions": self.submissions,
            }

    def nodes(self) -> object:
        resources = {"CPU": self.control.cpus, "memory": 2**33}
        return {"data": {"result": {"result": [{"state": "ALIVE", "resources_total": resources}]}}}


def handler_of(head: Head) -> type[BaseHTTPRequestHandler]:
    """Ray's pages."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            told = json.loads(body) if body else {}
            if self.path == "/control":
                if self.command == "POST":
                    head.control = replace(head.control, **told)
                self._say(200, head.told())
                return
            control = head.control
            if control.slow_s and not (self._is_submission and control.submit_first):
                time.sleep(control.slow_s)
            failing = control.status
            if failing == 200 and self._is_submission:
                failing = control.submission_status
            status, answer = (failing, "told to fail") if failing != 200 else self._do(told)
            if control.slow_s and self._is_submission and control.submit_first:
                time.sleep(control.slow_s)
            self._say(status, answer)

        @property
        def _is_submission(self) -> bool:
            return self.command == "POST" and self.path == "/api/jobs/"

        def _do(self, told: Mapping[str, Any]) -> tuple[int, object]:
            if self._is_submission:
                return head.submit(told)
            if self.path.startswith("/api/v0/nodes"):
                return 200, head.nodes()
            if self.path.startswith("/api/jobs/"):
                name, _, what = self.path.removeprefix("/api/jobs/").partition("/")
                return head.about(name, what, self.command)
            return 404, "no such page"

        def _say(self, status: int, answer: object) -> None:
            body = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                self.close_connection = True  # whoever asked has died

        do_GET = do_POST = _answer

    return Handler


class FakeRay:
    """The server seen from a test: it starts, is killed, and starts again on the same port."""

    def __init__(self, folder: Path, port: int, behaviour: Behaviour | None = None) -> None:
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        self.port = port
        self.behaviour = behaviour or Behaviour()
        self.url = f"http://127.0.0.1:{port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the server, which knows no job."""
        arguments = ["--port", self.port, "--folder", self.folder]
        arguments += ["--behaviour", json.dumps(asdict(self.behaviour))]
        with (self.folder / "head.log").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.services.fake_ray", *map(str, arguments)],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until(self._answers, UP_S, "a fake Ray", self.tell)

    def kill(self) -> None:
        """As a machine that loses its power: the server and all its jobs, without a word."""
        assert self.process is not None
        jobs = self.processes() if self._answers() else []
        self.process.kill()
        self.process.wait()
        for pid in jobs:
            end(pid)

    def kill_job(self, name: str) -> bool:
        """Kills one job's process; whether it was running."""
        for job in self.told()["jobs"]:
            if job["id"] == name and job["status"] == "RUNNING":
                return end(job["pid"])
        return False

    def control(self, **changes: object) -> None:
        httpx.post(f"{self.url}/control", json=changes, timeout=30).raise_for_status()

    def told(self) -> dict[str, Any]:
        told: dict[str, Any] = httpx.get(f"{self.url}/control", timeout=30).json()
        return told

    def running(self) -> list[str]:
        """Ids of jobs that run."""
        return [job["id"] for job in self.told()["jobs"] if job["status"] == "RUNNING"]

    def processes(self) -> list[int]:
        """Process ids of jobs that run."""
        return [job["pid"] for job in self.told()["jobs"] if job["status"] == "RUNNING"]

    @contextmanager
    def disk_full(self) -> Iterator[None]:
        """No job can write another byte meanwhile; those that run have noticed."""
        file = self.folder / "disk-full"
        file.touch()
        try:
            wait_until(self._has_no_room, UP_S, "a disk that all jobs find full", self.tell)
            yield
        finally:
            file.unlink()

    def environment_of(self, name: str) -> dict[str, str]:
        """What a job was started with."""
        told: dict[str, str] = json.loads((self.folder / f"{name}.environment").read_text())
        return told

    @contextmanager
    def held(self, gate: Gate) -> Iterator[None]:
        """Jobs wait at the gate meanwhile."""
        file = self.folder / f"hold-{gate}"
        file.touch()
        try:
            yield
        finally:
            file.unlink()

    def tell(self) -> str:
        return (self.folder / "head.log").read_text(errors="replace")[-3000:]

    def _has_no_room(self) -> bool:
        return all((self.folder / f"{name}.no-room").exists() for name in self.running())

    def _answers(self) -> bool:
        try:
            return bool(httpx.get(f"{self.url}/api/v0/nodes", timeout=30).text)
        except httpx.HTTPError:
            return False


def end(pid: int) -> bool:
    """Kills a process; whether there was one."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def main() -> None:
    """Serves until it is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--behaviour", type=json.loads, default={})
    options = parser.parse_args()
    head = Head(options.folder, Behaviour(**options.behaviour))
    server = ThreadingHTTPServer(("127.0.0.1", options.port), handler_of(head))
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
