"""A job that trains nothing: it says what a real one would, with figures that a test can foretell."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from phantom_core.protocol import (
    AssignedRun,
    Assignment,
    DeviceInfo,
    Event,
    EventBatch,
    ExperimentFinished,
    ExperimentStarted,
    MetricPoint,
    Metrics,
    Payload,
    Phase,
    PowerSamples,
    RankInfo,
    Reason,
    RunFinished,
    RunOutcome,
    RunSkipped,
    RunStarted,
    Window,
)
from phantom_core.spec import ExperimentSpec
from services import assignments, experiments, ingest, leases
from services.database import Database
from services.leases import Lease
from services.states import ExperimentState
from services.views import IngestResult

START = datetime(2026, 1, 1, tzinfo=UTC)
HOST = "node-1"


def spec(**changes: object) -> ExperimentSpec:
    """A small experiment: two arms on two ranks, three rounds, no controls."""
    document: dict[str, object] = {
        "name": "ghosts",
        "task": {"kind": "digits"},
        "model": {"width": 64},
        "training": {"stop": {"kind": "steps", "steps": 100}},
        "arms": [
            {"strategy": "tensor", "name": "tensor", "world_size": 2},
            {"strategy": "phantom", "name": "phantom", "world_size": 2, "ghosts": 4},
        ],
        "controls": False,
        "measurement": {"rounds": 3},
    }
    return ExperimentSpec.model_validate(document | changes)


@dataclass
class Figures:
    """What one run is to report."""

    power_mw: float = 100_000.0
    """Of each board while training."""
    window_s: float = 10.0
    """Of each training window."""
    windows: int = 2
    """Training windows."""
    steps: int = 100
    """Over all training windows."""
    outcome: RunOutcome = "succeeded"
    loss: float = 0.5
    boards: int = 2
    readings_per_event: int | None = None
    """Power readings of a board that are told together; None for all of a window."""


@dataclass
class Source:
    """One voice of the job, counting what it says."""

    name: str
    seq: int = 0

    def event(self, subject: str, attempt: int, at: datetime, payload: Payload) -> Event:
        event = Event(
            subject_id=subject, attempt=attempt, source=self.name, seq=self.seq, at=at, payload=payload
        )
        self.seq += 1
        return event


@dataclass
class SimulatedJob:
    """Says what a job on two boards of one host would."""

    assignment: Assignment
    clock_s: float = 1_000.0
    """Monotonic clock of the host."""
    rank0: Source = field(default_factory=lambda: Source("rank-0"))
    rank1: Source = field(default_factory=lambda: Source("rank-1"))
    sampler: Source = field(default_factory=lambda: Source(f"sampler-{HOST}"))
    driver: Source = field(default_factory=lambda: Source("driver"))
    idle_mw: float = 50_000.0

    def at(self) -> datetime:
        """The wall clock; it runs with the monotonic one."""
        return START + timedelta(seconds=self.clock_s)

    def started(self) -> Iterator[Event]:
        """The worker group, its two boards, and their idle power for two seconds."""
        yield self._of_experiment(
            self.rank0,
            ExperimentStarted(
                backend="nccl",
                ranks=tuple(RankInfo(rank=rank, host=HOST, device_uuid=uuid(rank)) for rank in (0, 1)),
                devices=tuple(
                    DeviceInfo(
                        host=HOST,
                        uuid=uuid(rank),
                        kind="cuda",
                        name="NVIDIA H100",
                        method="nvml.counter",
                        scope="gpu",
                        driver="570.1",
                        power_limit_mw=700_000.0,
                        clock_limit_mhz=1_980.0,
                        memory_clock_limit_mhz=2_619.0,
                        memory_bytes=80 * 2**30,
                    )
                    for rank in (0, 1)
                ),
                versions={"python": "3.12", "torch": "2.11"},
            ),
        )
        for rank, source in enumerate((self.rank0, self.rank1)):
            yield self._of_experiment(
                source, self._window("idle_before", 0, rank, 2.0, self.idle_mw, charged=False)
            )
        self.clock_s += 2.0

    def run(self, run: AssignedRun, figures: Figures | None = None) -> Iterator[Event]:
        """One run from its first event to its last, with the samples beside it."""
        figures = figures or Figures()
        yield self._of_run(self.rank0, run, RunStarted(ranks=2))
        sources = (self.rank0, self.rank1)
        for rank in (0, 1):
            charged = rank < figures.boards
            phase: Phase = "setup" if charged else "waiting"
            yield self._of_run(
                sources[rank], run, self._window(phase, 0, rank, 1.0, figures.power_mw / 2, charged=charged)
            )
        self.clock_s += 1.0
        steps = figures.steps // figures.windows
        for number in range(figures.windows):
            yield from self._samples(figures)
            for rank in range(figures.boards):
                window = self._window(
                    "training", number, rank, figures.window_s, figures.power_mw, steps=steps
                )
                yield self._of_run(sources[rank], run, window)
            self.clock_s += figures.window_s
            points = tuple(
                MetricPoint(
                    step=steps * (number + 1),
                    name=name,
                    value=figures.loss,
                    energy_mj=figures.power_mw * figures.window_s * (number + 1) * figures.boards,
                    training_s=figures.window_s * (number + 1),
                )
                for name in ("train_loss", "evaluation_loss")
            )
            yield self._of_run(self.rank0, run, Metrics(points=points))
        yield self._of_run(
            self.rank0,
            run,
            RunFinished(
                outcome=figures.outcome,
                steps=figures.steps,
                samples=figures.steps * 256,
                training_s=figures.windows * figures.window_s,
                final_train_loss=figures.loss,
                final_evaluation_loss=figures.loss,
                step_mode="graph",
                compiled=False,
                exchange="symmetric_memory",
                parameters=12_345,
                peak_memory_bytes=2**20,
                flops_per_step=1e9,
                bytes_sent_per_step=1e6,
            ),
        )
        self.clock_s += 1.0

    def skipped(self, runs: Iterable[AssignedRun]) -> Iterator[Event]:
        """Runs that `rounds: auto` needs no more."""
        for run in runs:
            payload = RunSkipped(reason=Reason.PRECISION_REACHED, message="all is known to ± 1 %")
            yield self._of_run(self.rank0, run, payload)

    def finished(self) -> Iterator[Event]:
        """The job's last word."""
        yield self._of_experiment(self.driver, ExperimentFinished(outcome="succeeded"))

    def everything(self, figures: dict[str, Figures] | None = None) -> list[Event]:
        """All events of a job that makes all its runs; figures by name of the arm."""
        events = list(self.started())
        for run in self.assignment.runs:
            events += self.run(run, (figures or {}).get(run.arm))
        return [*events, *self.finished()]

    def batch(self, events: Iterable[Event]) -> EventBatch:
        """Events as they travel."""
        return EventBatch(experiment_id=self.assignment.experiment_id, events=tuple(events))

    def _samples(self, figures: Figures) -> Iterator[Event]:
        """Ten readings a second of both boards over the coming training window."""
        count = round(figures.window_s * 10) + 1
        at_once = figures.readings_per_event or count
        for first in range(0, count, at_once):
            offsets = [number / 10 for number in range(first, min(first + at_once, count))]
            for rank in (0, 1):
                power_mw = figures.power_mw if rank < figures.boards else self.idle_mw
                yield self._of_experiment(
                    self.sampler,
                    PowerSamples(
                        host=HOST,
                        device_uuid=uuid(rank),
                        method="instant",
                        at=tuple(self.at() + timedelta(seconds=offset) for offset in offsets),
                        monotonic_s=tuple(self.clock_s + offset for offset in offsets),
                        power_mw=(power_mw,) * len(offsets),
                    ),
                )

    def _window(
        self,
        phase: Phase,
        number: int,
        rank: int,
        duration_s: float,
        power_mw: float,
        *,
        steps: int = 0,
        charged: bool = True,
    ) -> Window:
        return Window(
            phase=phase,
            index=number,
            host=HOST,
            device_uuid=uuid(rank),
            charged=charged,
            started_at=self.at(),
            started_monotonic_s=self.clock_s,
            duration_s=duration_s,
            steps=steps,
            samples=steps * 256,
            energy_mj=power_mw * duration_s,
            uncertainty_mj=power_mw * 0.1,
            method="nvml.counter",
            scope="gpu",
        )

    def _of_experiment(self, source: Source, payload: Payload) -> Event:
        subject = self.assignment.experiment_id
        return source.event(subject, self.assignment.attempt, self.at(), payload)

    def _of_run(self, source: Source, run: AssignedRun, payload: Payload) -> Event:
        return source.event(run.run_id, run.attempt, self.at(), payload)


def uuid(rank: int) -> str:
    """UUID of a rank's board."""
    return f"GPU-{rank}"


def begun(db: Database, experiment: ExperimentSpec | None = None) -> tuple[str, Lease, SimulatedJob]:
    """Submits an experiment and begins its first attempt, as a dispatcher would."""
    identifier = experiments.submit(db, experiment or spec())
    lease = leases.claim(db, "dispatcher", 3_600)
    assert lease is not None
    assert lease.experiment_id == identifier
    leases.begin_attempt(db, lease)
    assert leases.mark_starting(db, lease, identifier, "http://ray/1")
    return identifier, lease, SimulatedJob(assignments.assignment(db, identifier))


def deliver(db: Database, job: SimulatedJob, events: Iterable[Event]) -> IngestResult:
    """Hands events over in one batch."""
    return ingest.ingest(db, job.batch(events))


def ran(
    db: Database, experiment: ExperimentSpec | None = None, figures: dict[str, Figures] | None = None
) -> str:
    """An experiment that has ended, with all its runs made."""
    identifier, _, job = begun(db, experiment)
    deliver(db, job, job.everything(figures))
    assert experiments.get(db, identifier).state == ExperimentState.SUCCEEDED
    return identifier
