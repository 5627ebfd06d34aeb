"""Millions of power samples as jobs send them and the service keeps them, for `benchmarks/service.py`."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from phantom_core.protocol import Event, PowerSamples
from services.database import Database
from services.mishaps import Mishaps
from services.power_joining import join_all
from services.runs import list_runs
from tests.services.simulated_job import Figures, SimulatedJob, begun, deliver, spec

EVENTS_PER_BATCH = 100
WINDOW_S = 60.0
ROUNDS = 5
READINGS_PER_EVENT = 20
"""Two seconds of a board, as a job's sampler sends them."""
SHORT = Figures(window_s=WINDOW_S, windows=10, readings_per_event=READINGS_PER_EVENT)
ONE_ARM = {"strategy": "tensor", "name": "tensor", "world_size": 2}
SAMPLES_OF_WINDOW = 2 * (round(WINDOW_S * 10) + 1)
"""Two boards at ten a second, both ends included."""


@dataclass
class Archive:
    """What was stored."""

    samples: int
    """Power samples in the database."""
    experiments: list[str]
    """Ids of those that ended, with rounds to compare."""
    long_run: str
    """A run that half of all samples belong to."""
    rates_per_s: list[float]
    """Samples a second that each short experiment's job could store, in order."""
    joining_s: float
    """Seconds of joining blocks, which a service does in the background, a little at a time."""


def fill(database: Database, samples: int) -> Archive:
    """Stores half of the samples in one long run and the rest in experiments of ten runs.

    Args:
        database: Migrated and empty.
        samples: How many, at least.

    Returns:
        What there is now.
    """
    archive = Archive(0, [], "", [], 0.0)
    archive.experiments.append(_store(database, archive, SHORT, rated=True, measurement={"rounds": ROUNDS}))
    windows = max(1, samples // 2 // SAMPLES_OF_WINDOW)
    figures = Figures(
        window_s=WINDOW_S, windows=windows, steps=windows, readings_per_event=READINGS_PER_EVENT
    )
    long = _store(database, archive, figures, arms=[ONE_ARM], measurement={"rounds": 1})
    archive.long_run = _first_run(database, long)
    while archive.samples < samples:
        archive.experiments.append(
            _store(database, archive, SHORT, rated=True, measurement={"rounds": ROUNDS})
        )
        print(f"  {archive.samples:,} of {samples:,} samples", flush=True)
    began, mishaps = time.perf_counter(), Mishaps()
    while join_all(database, mishaps):
        pass
    archive.joining_s = time.perf_counter() - began
    return archive


def _store(
    database: Database, archive: Archive, figures: Figures, *, rated: bool = False, **changes: object
) -> str:
    """Makes all runs of an experiment, which is the jobs' own but for the changes."""
    identifier, _, job = begun(database, spec(**changes))
    stored, seconds = 0, 0.0
    series = [job.started(), *(job.run(run, figures) for run in job.assignment.runs)]
    for events in (*series, job.finished()):
        count, took = _deliver(database, job, events)
        stored, seconds = stored + count, seconds + took
    archive.samples += stored
    if rated:
        archive.rates_per_s.append(stored / seconds)
    return identifier


def _deliver(database: Database, job: SimulatedJob, events: Iterable[Event]) -> tuple[int, float]:
    """Samples stored and the seconds that storing took; making the events is not counted."""
    stored, seconds, left = 0, 0.0, iter(events)
    while batch := list(islice(left, EVENTS_PER_BATCH)):
        began = time.perf_counter()
        result = deliver(database, job, batch)
        seconds += time.perf_counter() - began
        assert result.accepted == len(batch), result
        stored += sum(len(event.payload.at) for event in batch if isinstance(event.payload, PowerSamples))
    return stored, seconds


def _first_run(database: Database, experiment_id: str) -> str:
    return list_runs(database, experiment_id, limit=1).items[0].id
