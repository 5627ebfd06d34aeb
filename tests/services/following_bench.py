"""What tests of a followed experiment need: a cluster that answers what it is told to, and a clock that stands."""

from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast

from sqlalchemy import select, update

from phantom_core.capacity import Capacity
from phantom_core.protocol import ExperimentFinished, JobVariable, NextAnswer, NextRequest
from phantom_core.spec import ExperimentSpec
from services import assignments, experiments, group_calls, leases
from services.cluster import Cluster, JobState, JobStatus
from services.database import Database
from services.following import Follower, job_id
from services.log_parts import LogPart
from services.ray_requests import ClusterRefused, ClusterUnreachable
from services.settings import Settings
from services.tables import Experiment, ExperimentAttempt
from services.views import ExperimentDetail
from tests.services.simulated_job import SimulatedJob, deliver, spec

UNREACHABLE = ClusterUnreachable("nobody answers")


class FakeCluster:
    """Jobs by id; `submitting` and `asking` hold what the next calls raise, None for no error."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobStatus] = {}
        self.tokens: dict[str, str] = {}
        self.group_tokens: dict[str, str] = {}
        self.environments: dict[str, dict[str, str]] = {}
        self.submitting: list[Exception | None] = []
        self.asking: list[Exception | None] = []
        self.stopping: list[Exception | None] = []
        self.gets_through = False
        """Whether a submission that raises has got through all the same."""
        self.submitted: list[str] = []
        self.stopped: list[str] = []
        self.has = Capacity(cpus=8, gpus=0)
        self.requests: list[str] = []
        """What it was asked, in order; and `keep` where the follower let others have their turn."""
        self.printed = "Traceback\nValueError: no"

    def submit(self, job: str, *, python: str, environment: dict[str, str], name: str) -> None:
        self.requests.append("submit")
        assert set(environment) == set(JobVariable)
        self.submitted.append(job)
        self.environments[job] = environment
        error = self.submitting.pop(0) if self.submitting else None
        if error is None and job in self.jobs:
            error = ClusterRefused("the id is in use")
        if error is None or self.gets_through:
            self.jobs.setdefault(job, JobStatus("PENDING", ""))
            self.tokens.setdefault(job, environment[JobVariable.INGEST_TOKEN])
            self.group_tokens.setdefault(job, environment[JobVariable.GROUP_TOKEN])
        if error is not None:
            raise error

    def status(self, job: str) -> JobStatus | None:
        self.requests.append("status")
        error = self.asking.pop(0) if self.asking else None
        if error is not None:
            raise error
        return self.jobs.get(job)

    def stop(self, job: str) -> None:
        self.requests.append("stop")
        error = self.stopping.pop(0) if self.stopping else None
        if error is not None:
            raise error
        self.stopped.append(job)

    def log(self, job: str, first_byte: int = 0, most: int = 0) -> LogPart | None:
        self.requests.append("log")
        return LogPart(0, self.printed.encode(errors="surrogatepass"))

    def capacity(self) -> Capacity:
        self.requests.append("capacity")
        return self.has

    def dashboard_url(self, job: str) -> str:
        return f"http://ray/{job}"


class Bench:
    """An experiment, its follower, its cluster and a clock that only the test moves."""

    def __init__(
        self, db: Database, folder: Path, document: ExperimentSpec | None = None, **settings: Any
    ) -> None:
        self.db = db
        self.settings = Settings(
            **{"data_dir": folder, "attempts": 2, "silence_deadline_s": 100, "lease_ttl_s": 3_600} | settings
        )
        self.cluster = FakeCluster()
        self.clock_s = 0.0
        self.next(document)

    def next(self, document: ExperimentSpec | None = None) -> None:
        """Submits another experiment, and follows that from now on."""
        self.id = experiments.submit(self.db, document or spec())
        lease = leases.claim(self.db, "a", 3_600)
        assert lease is not None
        self.follower = self.followed_by(lease)

    def followed_by(self, lease: leases.Lease) -> Follower:
        def keep() -> None:
            self.cluster.requests.append("keep")

        return Follower(self.db, lease, self.settings, keep=keep, clock_s=lambda: self.clock_s)

    def step(self) -> bool:
        """One step, in which no lease runs out: each of its requests may take as long as one may."""
        self.cluster.requests.clear()
        has_more = self.follower.step(cast(Cluster, self.cluster))
        pairs = list(pairwise(self.cluster.requests))
        assert all("keep" in pair or pair == ("log", "log") for pair in pairs), pairs
        return has_more

    def steps_to_the_end(self, most: int = 20) -> None:
        """Steps, with a minute between them, until there is no more to do."""
        for _ in range(most):
            if not self.step():
                return
            self.clock_s += 60
        raise AssertionError(f"not over after {most} steps: {self.experiment}")

    @property
    def experiment(self) -> ExperimentDetail:
        return experiments.get(self.db, self.id)

    @property
    def ended_as(self) -> tuple[str, str | None]:
        return self.experiment.state, self.experiment.reason

    def ray_says(self, state: JobState, message: str = "", attempt: int = 1) -> None:
        self.cluster.jobs[job_id(self.id, attempt)] = JobStatus(state, message)

    def job(self) -> SimulatedJob:
        return SimulatedJob(assignments.assignment(self.db, self.id))

    def running(self) -> SimulatedJob:
        """Brings it to `running`."""
        assert self.step()
        self.ray_says("RUNNING")
        job = self.job()
        deliver(self.db, job, list(job.started()))
        assert self.experiment.state == "running"
        return job

    def succeeds(self) -> None:
        """Brings it to `succeeded`, with its job still there."""
        job = self.running()
        deliver(self.db, job, [event for run in job.assignment.runs for event in job.run(run)])
        deliver(self.db, job, job.finished())
        assert self.experiment.state == "succeeded"

    def asks(self, group: str, finished: str, device: Literal["cpu", "cuda"] = "cpu") -> NextAnswer:
        """A worker group asks what to do next."""
        question = NextRequest(group_id=group, finished=finished, device=device)
        token = self.cluster.group_tokens[group]
        return group_calls.ask(self.db, question, token, self.settings.keep_group_s)

    def idle_group(self) -> str:
        """Makes one experiment well; its worker group waits for the next."""
        self.succeeds()
        assert self.asks(self.id, self.id).action == "wait"
        return self.id

    def reports(self, finished: ExperimentFinished, job: SimulatedJob) -> None:
        event = job.driver.event(self.id, job.assignment.attempt, job.at(), finished)
        deliver(self.db, job, [event])

    def ages(self, seconds: float) -> None:
        """Time passes for everything that the database knows of it, not for the follower's own start."""
        with self.db.write() as session:
            row = session.get_one(Experiment, self.id)
            aged = {
                name: getattr(row, name) - timedelta(seconds=seconds)
                for name in ("leased_at", "starting_at", "running_at", "last_event_at")
                if getattr(row, name) is not None
            }
            session.execute(update(Experiment).where(Experiment.id == self.id).values(aged))
            for attempt in session.scalars(
                select(ExperimentAttempt).where(ExperimentAttempt.experiment_id == self.id)
            ):
                if attempt.leased_at is not None:
                    attempt.leased_at -= timedelta(seconds=seconds)

    def ages_since_its_end(self, seconds: float) -> None:
        """Time passes after the experiment has ended."""
        with self.db.write() as session:
            row = session.get_one(Experiment, self.id)
            assert row.finished_at is not None
            row.finished_at -= timedelta(seconds=seconds)

    def ages_while_followed(self, seconds: float) -> None:
        """Time passes for the follower, by the clock that it counts with."""
        self.clock_s += seconds
