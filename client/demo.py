"""`ghostwatt demo`: starts a service of its own, runs one experiment on it, and says what came out.

Ctrl-c and SIGTERM are looked at between steps (`stopping`), and whatever happens, the service is ended with
all that it started (`service_process`) before this returns.
"""

import contextlib
import shlex
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.text import Text

from client.client import GhostwattClient
from client.comparison_table import ComparisonTable, answer_sentences, is_comparable
from client.demo_specs import choose_demo
from client.errors import ExitCode, GhostwattError, NotStarted, ServiceUnreachable
from client.models import Readiness
from client.progress import ExperimentProgress, Waiting
from client.service_process import ServiceProcess, free_port, service_environment
from client.stopping import Stopped, StopRequest, stop_requests

PREFERRED_PORT = 8411
START_S = 180.0
"""Longest wait for the service and its Ray head."""
POLL_S = 0.5
OVERRIDDEN = (
    "DATABASE_URL",
    "HOST",
    "PORT",
    "SERVICE_URL",
    "DATA_DIR",
    "DATA_ROOTS",
    "REQUIRE_KEYS",
    "ALLOWED_HOSTS",
)
"""Settings that the demo makes itself; what the environment says of them is meant for another service."""


MakeService = Callable[[dict[str, str], Path], ServiceProcess]


@dataclass(frozen=True)
class Demo:
    """How the demo is run."""

    data_dir: Path
    """Folder for database, log and Ray's files; kept."""
    once: bool
    """Whether to end after the answer instead of serving on."""


def new_data_dir(parent: Path = Path(".ghostwatt")) -> Path:
    """A folder of this demo's own, so that no earlier one's unfinished work is taken up again."""
    parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}-", dir=parent)).absolute()


def start_service(environment: dict[str, str], log: Path) -> ServiceProcess:
    """The real service."""
    return ServiceProcess(environment, log=log)


def run_demo(demo: Demo, console: Console, *, make_service: MakeService | None = None) -> ExitCode:
    """Runs the demo.

    Args:
        demo: How.
        console: Where it talks.
        make_service: Makes the service's process of its environment and log file; None the real one.

    Returns:
        OK after the answer; otherwise why there is none.
    """
    with stop_requests() as stop:
        try:
            return _serve_and_answer(demo, console, stop, make_service or start_service)
        except Stopped as stopped:
            console.print("stopped before the answer; nothing is left running")
            terminated = stopped.signal_number == signal.SIGTERM
            return ExitCode.TERMINATED if terminated else ExitCode.INTERRUPTED


def _serve_and_answer(
    demo: Demo,
    console: Console,
    stop: StopRequest,
    make_service: MakeService,
) -> ExitCode:
    port = free_port(PREFERRED_PORT)
    url = f"http://127.0.0.1:{port}"
    if port != PREFERRED_PORT:
        console.print(f"port {PREFERRED_PORT} is taken, so this demo's service listens on {port}")
    settings = {"DATA_DIR": str(demo.data_dir), "HOST": "127.0.0.1", "PORT": str(port)}
    environment = service_environment(
        {f"GHOSTWATT_{name}": value for name, value in settings.items()},
        without=[f"GHOSTWATT_{name}" for name in OVERRIDDEN],
    )
    service = make_service(environment, demo.data_dir / "service.log")
    try:
        with service, GhostwattClient(url) as client:
            code = _answer(console, client, service, stop)
            if code is ExitCode.OK and not demo.once:
                _serve_on(console, url, service, stop)
            console.print("ending the service and all that it started ...")
    finally:
        if not service.ended_gently:
            console.print("the service did not end by itself in time and was killed")
        console.print(f"kept: {demo.data_dir} (database, service.log)", soft_wrap=True)
        console.print(
            f"to look at it again: ghostwatt serve --data-dir {shlex.quote(str(demo.data_dir))}",
            soft_wrap=True,
        )
    return code


def _answer(
    console: Console, client: GhostwattClient, service: ServiceProcess, stop: StopRequest
) -> ExitCode:
    with Waiting(console) as waiting:
        _wait_until_ready(waiting, client, service, stop)
        waiting.note(Text(f"the service answers at {client.url}"))
        submitted = client.submit(choose_demo(lambda spec: client.validate(spec).valid))
        waiting.note(Text(f"submitted {submitted.id}"))
        progress = ExperimentProgress(waiting, client.runs)

        def pause(seconds: float) -> None:
            _check_alive(service)
            stop.sleep(seconds)

        try:
            experiment = client.wait(submitted.id, poll_s=POLL_S, on_change=progress.update, sleep=pause)
        except Stopped:
            _leave_cancelled(client, submitted.id)
            raise
    comparison = client.comparison(experiment.id)
    console.print()
    console.print(ComparisonTable(comparison))
    console.print()
    if experiment.state != "succeeded":
        why = experiment.message or experiment.reason or "no reason given"
        console.print(Text(f"the experiment {experiment.state}: {why}", "red"), soft_wrap=True)
        return ExitCode.EXPERIMENT_ENDED_BADLY
    for sentence in answer_sentences(comparison):
        console.print(Text(sentence, "bold"), soft_wrap=True)
    console.print()
    lines = [
        f"page:       {client.url}/experiments/{experiment.id}",
        f"API:        {client.url}/docs",
        f"read back:  curl {client.url}/v1/experiments/{experiment.id}/comparison",
    ]
    if experiment.ray_dashboard_url:
        lines.insert(1, f"Ray:        {experiment.ray_dashboard_url} (job {experiment.ray_job_id})")
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    return ExitCode.OK if is_comparable(comparison) else ExitCode.NOT_COMPARABLE


def _wait_until_ready(
    waiting: Waiting, client: GhostwattClient, service: ServiceProcess, stop: StopRequest
) -> None:
    end = time.monotonic() + START_S
    readiness: Readiness | None = None
    while time.monotonic() < end:
        _check_alive(service)
        try:
            readiness = client.ready()
        except ServiceUnreachable:
            waiting.say("starting the service")
        else:
            if readiness.status == "ready":
                return
            waiting.say(f"the service is up; waiting for: {_missing(readiness)}")
        stop.sleep(POLL_S)
    found = "it never answered" if readiness is None else _missing(readiness)
    raise NotStarted(f"the service was not ready after {START_S:g} s: {found}\n{_log_end(service)}")


def _missing(readiness: Readiness) -> str:
    return "; ".join(f"{check.name} ({check.detail})" for check in readiness.checks if not check.ok)


def _check_alive(service: ServiceProcess) -> None:
    code = service.exit_code()
    if code is not None:
        raise NotStarted(f"the service ended with exit code {code}\n{_log_end(service)}")


def _log_end(service: ServiceProcess) -> str:
    return f"{service.log} ends with:\n{service.last_lines()}"


def _leave_cancelled(client: GhostwattClient, experiment_id: str) -> None:
    """Writes the intent down, so that the database that stays behind tells the truth if there is time."""
    with contextlib.suppress(GhostwattError):
        client.cancel(experiment_id)


def _serve_on(console: Console, url: str, service: ServiceProcess, stop: StopRequest) -> None:
    console.print(f"\nserving at {url} until ctrl-c")
    with contextlib.suppress(Stopped):
        while True:
            _check_alive(service)
            stop.sleep(1.0)
