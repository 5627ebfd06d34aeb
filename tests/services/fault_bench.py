"""Real services, a real database and jobs that are processes, to be killed; and what must be true afterwards."""

import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import func, select

from phantom_core.protocol import EVENT_ADAPTER, Event, Metrics, Window
from phantom_core.spec import ExperimentSpec
from services.database import Database
from services.states import TERMINAL_STATES, ExperimentState
from services.tables import Attempt, Experiment, ExperimentAttempt, MetricBlock, Run, WorkerGroup
from services.tables import Event as EventRow
from services.tables import Window as WindowRow
from tests.running import READY_S, RunningService, free_port, start_service, wait_until
from tests.services.fake_job import Behaviour
from tests.services.fake_ray import FakeRay
from tests.services.simulated_job import spec

HASTY = "tests.services.hasty_service"
SETTLED_S = 240.0
"""Longest wait for experiments to end on a busy machine."""
QUICK = {
    "GHOSTWATT_POLL_INTERVAL_S": "0.1",
    "GHOSTWATT_LEASE_TTL_S": "5",
    "GHOSTWATT_SILENCE_DEADLINE_S": "60",
    "GHOSTWATT_KEEP_GROUP_S": "0",
    "GHOSTWATT_RAY_MAX_ACTIVE": "4",
}
"""Settings with which what takes minutes takes seconds."""

SUCCEEDED = ("succeeded", None)
"""How an experiment ends that nothing befell, as `FaultBench.settled` tells it."""

FROM_JOBS = (EventRow.source != "service", EventRow.source.not_like("service.%"))
"""That an event is not one of the service's own."""

Identity = tuple[str, int, str, int]


@dataclass
class FaultBench:
    """One database, one head, any number of services."""

    folder: Path
    url: str
    database: Database
    head: FakeRay
    service_url: str | None = None
    """Where jobs report, if not straight to the service that started them."""
    services: dict[str, RunningService] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    def port_of(self, name: str) -> int:
        return self.ports.setdefault(name, free_port())

    def start(self, name: str = "a", *, module: str = HASTY, **settings: str) -> RunningService:
        """Starts a service, or the same one again: at the same address, on the same database."""
        service = self._start(name, module, settings)
        service.wait_until_ready()
        return service

    def start_without_a_cluster(self, name: str = "a", **settings: str) -> RunningService:
        """The same while no head answers."""
        service = self._start(name, HASTY, settings)
        wait_until(service.is_degraded, READY_S, "a service without a cluster", service.tell)
        return service

    def kill(self, name: str = "a") -> None:
        """Ends a service without a word."""
        self.services.pop(name).end(signal.SIGKILL)

    def freeze(self, name: str) -> RunningService:
        """Stops a service in between two transactions: nobody could ever write again with one that SQLite has open."""
        service = self.services[name]
        with self.database.write() as session:
            session.execute(select(1))
            service.process.send_signal(signal.SIGSTOP)
            stopped = psutil.Process(service.process.pid)
            self.wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED, "a service that stands still")
        return service

    def submit(self, name: str = "a", **changes: Any) -> str:
        return self.services[name].submit(small(**changes).model_dump(mode="json", exclude_unset=True))

    def state(self, identifier: str) -> str:
        with self.database.read() as session:
            return str(session.get_one(Experiment, identifier).state)

    def wait_for_state(self, identifier: str, *states: ExperimentState) -> None:
        self.wait_until(lambda: self.state(identifier) in states, f"{identifier} in {states}")

    def wait_for_renewal(self, identifier: str) -> None:
        """Waits until its dispatcher has come round once more."""
        before = self._lease(identifier)
        self.wait_until(lambda: self._lease(identifier) != before, f"a renewed lease of {identifier}")

    def attempt(self, identifier: str) -> int:
        with self.database.read() as session:
            return session.get_one(Experiment, identifier).attempt

    def groups(self) -> list[tuple[str, str]]:
        """Worker groups and their states."""
        with self.database.read() as session:
            return [(group.id, group.state) for group in session.scalars(select(WorkerGroup))]

    def owners(self) -> set[str | None]:
        """Who holds leases."""
        with self.database.read() as session:
            return set(session.scalars(select(Experiment.lease_owner)))

    def wait_until(self, look: Callable[[], Any], what: str) -> Any:
        return wait_until(look, SETTLED_S, what, self.tell)

    def started(self) -> list[str]:
        """The experiments whose jobs reached the head, in that order: one that was started twice is there twice.

        By experiment, since an attempt whose service died before it handed the job over leaves its number behind.
        """
        return [job.partition("-attempt-")[0] for job in self.head.told()["submissions"]]

    def landed(self, identifier: str) -> int:
        """Events of an experiment's jobs that the database has."""
        with self.database.read() as session:
            return session.execute(
                select(func.count())
                .select_from(EventRow)
                .where(EventRow.experiment_id == identifier, *FROM_JOBS)
            ).scalar_one()

    def spooled(self, identifiers: Iterable[str]) -> int:
        """Events of several experiments that their jobs have on their disks."""
        wanted = set(identifiers)
        return sum(len(each.events) for each in said(self.head.folder) if each.experiment_id in wanted)

    def all_landed(self, identifiers: Iterable[str]) -> int:
        """The same of several, once all that their jobs have on their disks has arrived."""
        wanted = set(identifiers)

        def landed() -> int | None:
            found = sum(map(self.landed, wanted))
            return found if found == self.spooled(wanted) else None

        number: int = self.wait_until(landed, "all that was said")
        return number

    def settled(self, identifiers: Iterable[str]) -> list[tuple[str, str | None]]:
        """Waits until all have ended and their jobs too, and looks whether all is as it must be.

        Args:
            identifiers: The experiments.

        Returns:
            How each ended, and why.
        """
        wanted = list(identifiers)

        def over() -> bool:
            with self.database.read() as session:
                ended = select(func.count()).where(
                    Experiment.id.in_(wanted), Experiment.state.in_(TERMINAL_STATES)
                )
                return session.execute(ended).scalar_one() == len(wanted)

        self.wait_until(over, f"end of {wanted}")
        if self.head.process is not None and self.head.process.poll() is None:
            self.wait_until(lambda: not self.head.running(), "end of all jobs")
            self.wait_until(lambda: not self.groups(), "no worker group that is thought to live")
        assert_no_row_is_stuck(self.database)
        assert_every_event_landed_once(self.database, self.head.folder)
        with self.database.read() as session:
            rows = {row.id: row for row in session.scalars(select(Experiment))}
        return [(rows[identifier].state, rows[identifier].reason) for identifier in wanted]

    def tell(self) -> str:
        return self.head.tell() + "".join(f"\n--- {name}\n{it.tell()}" for name, it in self.services.items())

    def _start(self, name: str, module: str, settings: Mapping[str, str]) -> RunningService:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        chosen = QUICK | {"GHOSTWATT_DATABASE_URL": self.url, "GHOSTWATT_RAY_ADDRESS": self.head.url}
        if self.service_url is not None:
            chosen["GHOSTWATT_SERVICE_URL"] = self.service_url
        self.services[name] = start_service(folder, self.port_of(name), module, **chosen | dict(settings))
        return self.services[name]

    def _lease(self, identifier: str) -> object:
        with self.database.read() as session:
            return session.get_one(Experiment, identifier).lease_expires_at


def small(**changes: Any) -> ExperimentSpec:
    """Two runs in one round; or what the changes say."""
    return spec(measurement={"rounds": 1}, **changes)


@contextmanager
def faults(folder: Path, url: str, behaviour: Behaviour | None = None) -> Iterator[FaultBench]:
    """A head on an empty, migrated database; everything that was started is ended at the end."""
    with Database(url) as database:
        bench = FaultBench(folder, url, database, FakeRay(folder / "ray", free_port(), behaviour))
        bench.head.start()
        try:
            yield bench
        finally:
            for service in bench.services.values():
                if service.process.poll() is None:
                    service.end(signal.SIGKILL)
            if bench.head.process is not None and bench.head.process.poll() is None:
                bench.head.kill()


def assert_no_row_is_stuck(database: Database) -> None:
    """Every experiment has ended with a reason that is true to its state; nothing of it is held or open."""
    with database.read() as session:
        for experiment in session.scalars(select(Experiment)):
            assert experiment.state in TERMINAL_STATES, f"{experiment.id} is {experiment.state}"
            assert experiment.finished_at is not None
            assert (experiment.lease_owner, experiment.lease_token, experiment.lease_expires_at) == (
                None,
            ) * 3
            if experiment.state != ExperimentState.SUCCEEDED:
                assert experiment.reason, f"{experiment.id} is {experiment.state} without a reason"
                assert experiment.message, f"{experiment.id} is {experiment.state} without a message"
        open_runs = session.scalars(select(Run.id).where(Run.state.in_(["queued", "running"]))).all()
        assert open_runs == []
        assert session.scalars(select(Attempt.run_key).where(Attempt.outcome.is_(None))).all() == []
        open_jobs = session.execute(
            select(ExperimentAttempt.experiment_id, ExperimentAttempt.attempt).where(
                ExperimentAttempt.ended_at.is_(None)
            )
        ).all()
        assert open_jobs == []
        made = select(Run.experiment_id, func.count()).where(Run.state == "succeeded")
        succeeded = {row[0]: row[1] for row in session.execute(made.group_by(Run.experiment_id)).all()}
        all_runs = select(Run.experiment_id, func.count()).group_by(Run.experiment_id)
        for identifier, number in session.execute(all_runs).all():
            if session.get_one(Experiment, identifier).state == ExperimentState.SUCCEEDED:
                assert succeeded[identifier] == number


@dataclass(frozen=True)
class Said:
    """What one start of a job has on its disk."""

    experiment_id: str
    attempt: int
    events: dict[Identity, Event]
    acknowledged: frozenset[Identity]
    """Those that the service has said it has."""


def said(head_folder: Path) -> Iterator[Said]:
    """What all jobs of a head said."""
    for folder in sorted(head_folder.glob("spools/*")):
        events: dict[Identity, Event] = {}
        acknowledged: set[Identity] = set()
        for file in folder.glob("*.events"):
            mark = file.with_suffix(".sent")
            sent_bytes = int(mark.read_text()) if mark.exists() else 0
            position = 0
            for line in file.read_bytes().splitlines(keepends=True):
                position += len(line)
                if not line.endswith(b"\n"):
                    continue  # its process was killed while it wrote
                event = EVENT_ADAPTER.validate_json(line)
                identity = (event.subject_id, event.attempt, event.source, event.seq)
                assert identity not in events, f"{identity} was said twice"
                events[identity] = event
                if position <= sent_bytes:
                    acknowledged.add(identity)
        identifier, _, attempt = folder.name.rpartition(".")
        yield Said(identifier, int(attempt), events, frozenset(acknowledged))


def assert_every_event_landed_once(database: Database, head_folder: Path) -> None:
    """What was acknowledged is there, what is there was said, and each brought its rows exactly once."""
    stories = list(said(head_folder))
    events = {identity: event for story in stories for identity, event in story.events.items()}
    acknowledged = {identity for story in stories for identity in story.acknowledged}
    with database.read() as session:
        stored = Counter(
            (row.subject_id, row.attempt, row.source, row.seq)
            for row in session.execute(
                select(EventRow.subject_id, EventRow.attempt, EventRow.source, EventRow.seq).where(*FROM_JOBS)
            )
        )
        windows = session.execute(select(func.count()).select_from(WindowRow)).scalar_one()
        points = session.execute(select(func.coalesce(func.sum(MetricBlock.point_count), 0))).scalar_one()
        ended_well = set(
            session.scalars(select(Experiment.id).where(Experiment.state == ExperimentState.SUCCEEDED))
        )
        last = {row.id: row.attempt for row in session.execute(select(Experiment.id, Experiment.attempt))}
    assert max(stored.values(), default=1) == 1
    assert acknowledged <= stored.keys(), f"lost: {sorted(acknowledged - stored.keys())[:5]}"
    assert stored.keys() <= events.keys(), f"never said: {sorted(stored.keys() - events.keys())[:5]}"
    landed = [events[identity] for identity in stored]
    assert windows == sum(isinstance(event.payload, Window) for event in landed)
    assert points == sum(len(event.payload.points) for event in landed if isinstance(event.payload, Metrics))
    for story in stories:
        if story.experiment_id in ended_well and story.attempt == last[story.experiment_id]:
            missing = story.events.keys() - stored.keys()
            assert not missing, f"{story.experiment_id} ended well without {sorted(missing)[:5]}"
