"""Spooled events to the service, each once: batches over HTTP, retried until the service has them.

The service drops what it has already (`subject, attempt, source, seq`), so after any doubt the same
batch is simply sent again. How far a file was sent is kept beside it, so a reporter that dies and
starts again goes on where it was.
"""

import logging
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Self

import httpx
from pydantic import ValidationError

from phantom_core.protocol import EVENT_ADAPTER, Assignment, Event, EventBatch
from ray_jobs.environment import JobEnvironment, JobError
from ray_jobs.service import REFUSALS, Service
from ray_jobs.spool import SUFFIX

log = logging.getLogger(__name__)

BATCH_EVENTS = 200
BATCH_BYTES = 500_000
REQUEST_TIMEOUT_S = 20.0
LONGEST_PAUSE_S = 15.0
REFRESH_S = 30.0
"""Seconds between two questions which services live: one that comes to be must be known before the last one goes."""
ASKING_S = 900.0
"""Seconds for which a job asks what to do. Longer than `resources.scheduling_deadline_s` is by default: a service that
lives ends it before, and says why."""


def fetch_assignment(job: JobEnvironment, deadline_s: float = ASKING_S) -> Assignment:
    """Asks the service what to do, again and again until `deadline_s` is over.

    Raises:
        JobError: The service refuses, or can't be reached in time.
    """
    path = f"/internal/v1/experiments/{job.experiment_id}/assignment"
    end = time.monotonic() + deadline_s
    with open_service(job, REQUEST_TIMEOUT_S) as service:
        while True:
            try:
                response = service.request("GET", path)
                if response.status_code == httpx.codes.OK:
                    return Assignment.model_validate_json(response.content)
                problem = f"the service answered {response.status_code}: {response.text[:500]}"
                if response.status_code in REFUSALS:
                    raise JobError(f"no assignment for {job.experiment_id}: {problem}")
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
            if time.monotonic() > end:
                raise JobError(
                    f"no assignment from {', '.join(service.urls)} within {deadline_s:.0f} s ({problem}); "
                    "check that workers can reach the service's address (GHOSTWATT_SERVICE_URL)"
                )
            time.sleep(1.0)


def open_service(job: JobEnvironment, timeout_s: float) -> Service:
    """Speaks to the service as the job; whoever opens it closes it."""
    return Service(job.urls, job.token, timeout_s)


def post(service: Service, experiment_id: str, events: Sequence[Event]) -> httpx.Response:
    """Sends one batch.

    Args:
        service: Of `open_service`.
        experiment_id: Whose events they are.
        events: In order.

    Raises:
        httpx.HTTPError: There was no answer.
    """
    batch = EventBatch(experiment_id=experiment_id, events=tuple(events))
    headers = {"Content-Type": "application/json"}
    return service.request("POST", "/internal/v1/events", content=batch.model_dump_json(), headers=headers)


class Reporter:
    """Sends the events of one spool folder from a thread of its own; a context manager."""

    def __init__(
        self,
        job: JobEnvironment,
        folder: Path,
        interval_s: float = 0.5,
        *,
        refresh_s: float = REFRESH_S,
    ) -> None:
        """Args.

        job: Whom to tell.
        folder: What to read.
        interval_s: Seconds between looks at it.
        refresh_s: Seconds between two questions which services live.
        """
        self._job = job
        self._refresh_s = refresh_s
        self._folder = folder
        self._interval_s = interval_s
        self._service = open_service(job, REQUEST_TIMEOUT_S)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._refused: str | None = None
        self._thread = threading.Thread(target=self._loop, name="reporter", daemon=True)
        self._thread.start()

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of services that it knows by now."""
        return self._service.urls

    @property
    def refused(self) -> str | None:
        """Why the service takes nothing from this job any more; None while it does."""
        return self._refused

    def drain(self, deadline_s: float) -> bool:
        """Sends everything that is in the folder now.

        Args:
            deadline_s: Seconds to go on trying for.

        Returns:
            Whether all of it reached the service; what did not stays on disk.
        """
        end = time.monotonic() + deadline_s
        while not (sent := self._send_all()) and self._refused is None and time.monotonic() < end:
            self._stop.wait(min(1.0, max(0.0, end - time.monotonic())))
        return sent

    def close(self) -> None:
        """Ends the thread; sends nothing more."""
        self._stop.set()
        self._thread.join(timeout=REQUEST_TIMEOUT_S + 5)
        self._service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _loop(self) -> None:
        pause_s = self._interval_s
        refresh_at_s = time.monotonic() + self._refresh_s
        while not self._stop.wait(pause_s):
            if self._refused is not None:
                return
            pause_s = self._interval_s if self._send_all() else _longer(pause_s)
            if time.monotonic() >= refresh_at_s:
                with self._lock:
                    self._service.refresh()
                refresh_at_s = time.monotonic() + self._refresh_s

    def _send_all(self) -> bool:
        """True if nothing is left unsent."""
        with self._lock:
            try:
                paths = sorted(self._folder.glob(f"*{SUFFIX}"))
                # Not a generator: one file that can't be sent must not hold up the others.
                sent = [self._send_file(path) for path in paths]
                return all(sent)
            except (httpx.HTTPError, OSError) as error:
                log.warning("events wait on disk: %s: %s", type(error).__name__, error)
                return False

    def _send_file(self, path: Path) -> bool:
        mark = path.with_suffix(".sent")
        offset = int(mark.read_text()) if mark.exists() else 0
        with path.open("rb") as file:
            while True:
                file.seek(offset)
                events, length = _read_batch(file)
                if not length:
                    return True
                if events and not self._post(events):
                    return False
                offset += length
                _replace(mark, str(offset))

    def _post(self, events: list[Event]) -> bool:
        response = post(self._service, self._job.experiment_id, events)
        if response.is_success:
            return True
        log.warning("the service answered %d: %s", response.status_code, response.text[:500])
        if response.status_code in REFUSALS:
            self._refused = f"the service answered {response.status_code}"
        return False


def _read_batch(file: BinaryIO) -> tuple[list[Event], int]:
    """Whole lines from here on, up to a batch, and the bytes they take; a line still being written stays."""
    events: list[Event] = []
    length = 0
    while len(events) < BATCH_EVENTS and length < BATCH_BYTES:
        line = file.readline()
        if not line.endswith(b"\n"):
            break
        length += len(line)
        try:
            events.append(EVENT_ADAPTER.validate_json(line))
        except ValidationError as error:
            log.error("a line that is no event is left out: %s", error)
    return events, length


def _replace(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(path)


def _longer(pause_s: float) -> float:
    return min(LONGEST_PAUSE_S, 2 * pause_s) * random.uniform(0.75, 1.25)  # noqa: S311 (spreads retries)
