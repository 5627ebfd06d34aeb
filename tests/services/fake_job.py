"""A job's process that trains nothing: the service's, spool's and reporter's real work around simulated figures.

It may be held at gates: while the file `hold-<gate>` lies in the head's folder, the job waits there. While the file
`disk-full` does, no file of the job's grows by a byte. What it was started with lies beside its log.
"""

import json
import logging
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Literal

from phantom_core.protocol import JOB_LOG_LINE, Assignment, Event, GroupEnded, Reason
from ray_jobs.environment import GroupEnvironment, JobEnvironment, JobError
from ray_jobs.group import next_job, tell_end
from ray_jobs.reporter import Reporter, fetch_assignment
from ray_jobs.spool import Spool, SpoolError
from tests.services.simulated_job import Figures, SimulatedJob

Gate = Literal["begin", "running", "finishing"]
"""Before it asks for its assignment; once its worker group has reported; before its last word."""

PATIENCE_S = 120.0
"""Seconds for which everything is tried again, as in a real job."""


@dataclass(frozen=True)
class Behaviour:
    """How jobs behave."""

    pause_s: float = 0.0
    """Between two events."""
    window_s: float = 1.0
    """Length of each simulated training window, and with that the number of its power readings."""
    room_s: float = PATIENCE_S
    """Seconds for which it waits for room on the disk at its end."""


def run(environment: dict[str, str], folder: Path, name: str, behaviour: Behaviour) -> None:
    """What the process does from its start to its end; the exit code is Ray's verdict."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with (folder / f"{name}.log").open("ab", buffering=0) as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, force=True)
    threading.Thread(target=_die_with_the_head, daemon=True).start()
    told = folder / f"{name}.environment.part"
    told.write_text(json.dumps(environment))
    told.replace(told.with_suffix(""))  # whole as soon as it is there
    threading.Thread(target=_mind_the_disk, args=(folder, name), daemon=True).start()
    hold(folder, "begin")
    try:
        job, group = JobEnvironment.read(environment), GroupEnvironment.read(environment)
        _make_experiments(job, group, folder, behaviour)
    except JobError as error:
        print(error, flush=True)
        sys.exit(2)
    except SpoolError as error:
        lost = GroupEnded(
            group_id=group.group_id, outcome="failed", reason=Reason.WORKER_LOST, message=str(error)
        )
        tell_end(group, lost, PATIENCE_S)
        sys.exit(1)
    tell_end(group, GroupEnded(group_id=group.group_id, outcome="succeeded"), PATIENCE_S)


def nothing() -> None:
    """What a process does that is only to be there."""


def hold(folder: Path, gate: Gate) -> None:
    """Waits while the gate is shut."""
    while (folder / f"hold-{gate}").exists():
        time.sleep(0.02)


def spool_of(folder: Path, experiment_id: str, attempt: int) -> Path:
    """Where a job keeps its events: they stay, so that a test can count what was said."""
    return folder / "spools" / f"{experiment_id}.{attempt}"


def _make_experiments(
    job: JobEnvironment, group: GroupEnvironment, folder: Path, behaviour: Behaviour
) -> None:
    following: JobEnvironment | None = job
    while following is not None:
        assignment = fetch_assignment(following, PATIENCE_S)
        with suppress(OSError):  # its log may be on a disk that was full a moment ago
            print(f"{JOB_LOG_LINE}{assignment.experiment_id}, attempt {assignment.attempt}", flush=True)
        delivered = _work(following, assignment, folder, behaviour)
        following = next_job(group, assignment.experiment_id, "cpu") if delivered else None


def _work(job: JobEnvironment, assignment: Assignment, folder: Path, behaviour: Behaviour) -> bool:
    simulated = SimulatedJob(assignment)
    spools = spool_of(folder, assignment.experiment_id, assignment.attempt)
    spools.mkdir(parents=True)
    with ExitStack() as stack:
        reporter = stack.enter_context(Reporter(job, spools, interval_s=0.05))
        voices: dict[str, Spool] = {}

        def say(events: Iterable[Event]) -> None:
            for event in events:
                if event.source not in voices:
                    voices[event.source] = stack.enter_context(
                        Spool(spools, event.source, assignment.experiment_id, assignment.attempt)
                    )
                is_of_run = event.subject_id != assignment.experiment_id
                voices[event.source].emit(
                    event.payload, run=(event.subject_id, event.attempt) if is_of_run else None
                )
                time.sleep(behaviour.pause_s)

        say(simulated.started())
        hold(folder, "running")
        for run in assignment.runs:
            say(simulated.run(run, Figures(window_s=behaviour.window_s)))
        unwritten = [told for voice in voices.values() if (told := voice.flush(behaviour.room_s)) is not None]
        if unwritten:
            raise SpoolError("; ".join(unwritten))
        delivered = reporter.drain(PATIENCE_S)
        hold(folder, "finishing")
        say(simulated.finished())
        for voice in voices.values():
            voice.flush(PATIENCE_S)
        return reporter.drain(PATIENCE_S) and delivered


def _mind_the_disk(folder: Path, name: str) -> None:
    """A write beyond the limit fails as one on a full disk does (EFBIG); Python ignores the signal.

    Meanwhile `<name>.no-room` lies in the folder.
    """
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    noticed = folder / f"{name}.no-room"
    while True:
        is_full = (folder / "disk-full").exists()
        resource.setrlimit(resource.RLIMIT_FSIZE, (0 if is_full else most, most))
        if is_full:
            noticed.touch()
        else:
            noticed.unlink(missing_ok=True)
        time.sleep(0.02)


def _die_with_the_head() -> None:
    head = multiprocessing.parent_process()
    assert head is not None
    connection.wait([head.sentinel])
    os._exit(1)
