"""One actor per node, outside the training processes: samples power and delivers its ranks' events.

It dies alone. Ray starts it again; the reporter goes on where it stopped, the gap in the samples shows as a
gap, and training never notices.
"""

import logging
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from phantom_core.meters.choose import MeterRequest, open_distinct_meters
from phantom_core.meters.sampling import PowerSampler, Sample
from phantom_core.protocol import SAMPLER_SOURCE, Assignment
from ray_jobs.environment import JobEnvironment
from ray_jobs.reporter import Reporter
from ray_jobs.spool import Spool, remove_spool

log = logging.getLogger(__name__)

STOP_S = 10.0
"""Seconds that the sampling thread has to end."""


class Sampler:
    """What the actor does; usable without Ray."""

    def __init__(
        self,
        job: JobEnvironment,
        assignment: Assignment,
        folder: Path,
        requests: Sequence[MeterRequest],
        start: int,
    ) -> None:
        """Begins at once.

        Args:
            job: The service to deliver to.
            assignment: The experiment, its attempt and the sample rate.
            folder: Spool of this node's ranks; the samples join it.
            requests: The devices of this node's ranks.
            start: Counts the actor's starts, so that a restarted one is a source of its own.
        """
        self._stop = threading.Event()
        self._folder = folder
        self._resources = ExitStack()
        self._reporter = self._resources.enter_context(Reporter(job, folder))
        meters = open_distinct_meters(requests)
        for meter in meters:
            self._resources.enter_context(meter)
        host = requests[0].host
        source = f"{SAMPLER_SOURCE}{host}"[:48] + (f".{start}" if start else "")
        spool = self._spool = self._resources.enter_context(
            Spool(folder, source, assignment.experiment_id, assignment.attempt)
        )

        def keep(sample: Sample) -> None:
            spool.emit(sample)

        sampler = PowerSampler(meters, assignment.plan.spec.measurement.sample_rate_hz, keep, host=host)
        self._thread = threading.Thread(
            target=sampler.run, args=(self._stop,), name="power sampler", daemon=True
        )
        self._thread.start()

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of services that it knows by now."""
        return self._reporter.urls

    def finish(self, deadline_s: float) -> bool:
        """Stops sampling and delivers everything in the spool.

        Args:
            deadline_s: Seconds to go on trying for.

        Returns:
            Whether the service has all of it.
        """
        self._stop.set()
        self._thread.join(timeout=STOP_S)
        unwritten = self._spool.flush(deadline_s)
        if unwritten is not None:
            log.warning("%s", unwritten)
        delivered = self._reporter.drain(deadline_s) and unwritten is None
        self._resources.close()
        if delivered:
            remove_spool(self._folder)
        return delivered
