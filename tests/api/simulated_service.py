"""A whole service whose jobs train nothing: `python -m tests.api.simulated_service serve`.

Its dispatcher leases experiments as the real one does and speaks to the service over HTTP with the job's token, so
that everything but Ray and PyTorch is real. Variables, for tests of what goes wrong: SIMULATE_PAUSE_S between
two runs, SIMULATE_OUTCOME of all runs, SIMULATE_STUBBORN=1 for a service that ignores SIGTERM.
"""

import os
import threading
from collections.abc import Iterable
from types import FrameType

import httpx

import api.commands as entry
from api.background import Background
from api.server import PatientServer
from phantom_core.capacity import Capacity
from phantom_core.protocol import Assignment, Event, RunFinished
from services import leases
from services.database import Database
from services.settings import Settings
from services.states import ExperimentState
from tests.services.simulated_job import Figures, SimulatedJob


class SimulatedDispatcher:
    """One thread that takes an experiment after the other."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="simulated dispatcher")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def heartbeat_age_s(self) -> float | None:
        return 0.0

    def capacity(self) -> Capacity | None:
        return Capacity(cpus=8, gpus=0)

    def trouble(self) -> str | None:
        return None

    def cluster_problem(self) -> str | None:
        return None

    def _work(self) -> None:
        with Database(self._settings.database_url) as database:
            while not self._stop.wait(0.05):
                lease = leases.claim(database, "simulated", 60)
                if lease is not None:
                    self._run(database, lease)

    def _run(self, database: Database, lease: leases.Lease) -> None:
        token = leases.begin_attempt(database, lease).token
        leases.mark_starting(database, lease, lease.experiment_id, "http://127.0.0.1:8265/#/jobs/simulated")
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=self._settings.service_url, headers=headers, timeout=30) as http:
            answer = http.get(f"/internal/v1/experiments/{lease.experiment_id}/assignment").raise_for_status()
            job = SimulatedJob(Assignment.model_validate_json(answer.content))
            self._tell(http, job, job.started())
            for number, run in enumerate(job.assignment.runs):
                if number > 0 and self._stop.wait(float(os.environ.get("SIMULATE_PAUSE_S", "0"))):
                    return
                if leases.follow(database, lease).cancel_requested:
                    leases.finish(database, lease, ExperimentState.CANCELLED)
                    return
                figures = figures_of(run.arm, run.round)
                self._tell(
                    http, job, (reaching_the_target(event, figures) for event in job.run(run, figures))
                )
            self._tell(http, job, job.finished())

    def _tell(self, http: httpx.Client, job: SimulatedJob, events: Iterable[Event]) -> None:
        headers = {"Content-Type": "application/json"}
        batch = job.batch(events).model_dump_json()
        http.post("/internal/v1/events", content=batch, headers=headers).raise_for_status()


def figures_of(arm: str, round_number: int) -> Figures:
    """Phantom uses half of tensor's power; controls lie between; rounds differ by a few per cent."""
    power_mw = 50_000.0 if arm == "phantom" else 100_000.0 if arm.startswith("tensor") else 80_000.0
    outcome = os.environ.get("SIMULATE_OUTCOME", "succeeded")
    varied = power_mw * (1 + 0.01 * ((7 * round_number + len(arm)) % 5))
    return Figures(power_mw=varied, outcome=outcome)  # type: ignore[arg-type]


def reaching_the_target(event: Event, figures: Figures) -> Event:
    """Every run that succeeds reaches the target at its last step."""
    payload = event.payload
    if not isinstance(payload, RunFinished) or payload.outcome != "succeeded":
        return event
    seconds = figures.windows * figures.window_s
    reached = {
        "target_step": payload.steps,
        "seconds_to_target": seconds,
        "energy_to_target_mj": figures.power_mw * seconds * figures.boards,
    }
    return event.model_copy(update={"payload": payload.model_copy(update=reached)})


def make_background(settings: Settings) -> Background:
    """In place of the real dispatcher."""
    return SimulatedDispatcher(settings)


class StubbornServer(PatientServer):
    """Ends for nobody."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        pass


if __name__ == "__main__":
    entry.make_background = make_background
    if os.environ.get("SIMULATE_STUBBORN"):
        entry.PatientServer = StubbornServer  # type: ignore[attr-defined]
    entry.commands()
