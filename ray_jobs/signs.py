"""How ranks' signs of life reach the service: spooled as all events are, and straight where nothing else would.

A disk that is full takes no sign, and at an experiment's end nobody reads the spool any more; the ranks live all the
same. A sign that is lost is no loss: the next one follows.
"""

import logging
from pathlib import Path
from typing import Self

import httpx

from phantom_core.meters.base import Instant
from phantom_core.protocol import Assignment, Event, Payload
from ray_jobs.environment import JobEnvironment
from ray_jobs.reporter import open_service, post
from ray_jobs.service import Service
from ray_jobs.spool import Spool

log = logging.getLogger(__name__)

SOURCE = "pulse"
STRAIGHT_SOURCE = "pulse-straight"
"""A source of its own, since each numbers its events."""
REQUEST_TIMEOUT_S = 5.0


class Signs:
    """Those of one experiment's ranks; a context manager. `tell` is for one thread."""

    def __init__(self, job: JobEnvironment, assignment: Assignment, folder: Path) -> None:
        """Args: whom to tell, of which attempt, the spool's folder."""
        self._job = job
        self._assignment = assignment
        # A spool of its own, since two threads can't share one.
        self._spool = Spool(folder, SOURCE, assignment.experiment_id, assignment.attempt)
        self._service: Service | None = None
        self._straight = False
        self._seq = 0

    def go_straight(self) -> None:
        """From now on nothing is spooled; for any thread."""
        self._straight = True

    def tell(self, payload: Payload) -> None:
        """Says it. Never raises; on a straight way it waits for the service, but not for long."""
        if not self._straight:
            self._spool.emit(payload)
            if not self._spool.is_behind:
                return
        try:
            self._send(payload)
        except httpx.HTTPError as error:
            log.warning("a sign of life did not reach the service: %s: %s", type(error).__name__, error)

    def _send(self, payload: Payload) -> None:
        if self._service is None:
            self._service = open_service(self._job, REQUEST_TIMEOUT_S)
        event = Event(
            subject_id=self._assignment.experiment_id,
            attempt=self._assignment.attempt,
            source=STRAIGHT_SOURCE,
            seq=self._seq,
            at=Instant.now().at,
            payload=payload,
        )
        self._seq += 1
        response = post(self._service, self._job.experiment_id, [event])
        if not response.is_success:
            log.warning("a sign of life was not taken: the service answered %d", response.status_code)

    def close(self) -> None:
        """Ends; what is not on the disk by now is dropped."""
        self._spool.close()
        if self._service is not None:
            self._service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
