"""One experiment from its lease to its end: submit its job, watch it, end it truthfully.

`Follower.step` looks once and changes at most one thing, so that a dispatcher can follow many. What it must
remember is in the database; what it keeps itself (an ingest token not yet handed over, a stop under way)
costs at worst another attempt if it dies. A transport error changes no state, until Ray has been away for so long
that an end which is due is told without it.
"""

import logging
import time
from collections.abc import Callable

from phantom_core.checks import Capacity, check
from phantom_core.plan import Plan, make_plan
from phantom_core.protocol import JobVariable, Reason
from phantom_core.spec import ExperimentSpec
from services import groups, heartbeats, job_logs, leases, switches
from services.cluster import FINAL_STATES, Cluster, JobStatus
from services.database import Database
from services.deadlines import Deadlines, Ending, Stood, age_s
from services.endings import RETRIED
from services.errors import LeaseLost
from services.event_limits import text
from services.groups import Shape
from services.job_ends import judged
from services.leases import FollowView, IngestToken, Lease
from services.ray_requests import ClusterError, ClusterRefused, ClusterUnreachable
from services.settings import Settings
from services.states import ExperimentState
from services.tables import Experiment

log = logging.getLogger(__name__)

LATE_EVENTS_S = 15.0
"""Seconds that the last events of an ended job may take to arrive before its end is judged without them."""
STOP_AGAIN_S = 30.0
"""Seconds after which a job that was told to stop and still runs is told again."""
SUBMIT_AGAIN_S = 120.0
"""Seconds for which a job that Ray fails to take, without refusing it, is offered again."""

HANDOVER_S = 10.0
"""Seconds in which an idle worker group must take what it was offered."""


class Follower:
    """Follows one leased experiment."""

    def __init__(
        self,
        db: Database,
        lease: Lease,
        settings: Settings,
        *,
        keep: Callable[[], object] = lambda: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Says what is followed, and how.

        Args:
            db: The database.
            lease: The hold on the experiment.
            settings: Deadlines and addresses.
            keep: Called before each request to the cluster but a step's first: what else must not wait for all.
            clock_s: A monotonic clock.
        """
        self.lease = lease
        self._keep = keep
        self._db = db
        self._settings = settings
        self._clock_s = clock_s
        with db.read() as session:
            experiment = session.get_one(Experiment, lease.experiment_id)
            self._spec = ExperimentSpec.model_validate(experiment.spec)
            self._name = experiment.name
        self._plan: Plan = make_plan(self._spec)
        self._token: IngestToken | None = None
        self._group_token: str | None = None
        self._ending: Ending | None = None
        self._stopped_at_s: float | None = None
        self._ended_since_s: float | None = None
        self._offered_since_s: float | None = None
        self._deadlines = Deadlines(self._plan, settings, clock_s)
        self._unanswered_since_s: float | None = None

    def step(self, cluster: Cluster) -> bool:
        """Looks once.

        Args:
            cluster: Where the job runs.

        Returns:
            Whether there is more to do; False once the experiment has ended or belongs to another.
        """
        try:
            view = leases.follow(self._db, self.lease)
            stood = self._deadlines.look(view)
            try:
                has_more = self._step(cluster, view, stood)
            except ClusterError as error:
                return self._without_answer(view, error)
            self._unanswered_since_s = None
            return has_more
        except LeaseLost as error:
            log.info("%s", error)
            return False

    def conclude(self) -> None:
        """Ends the experiment as was decided, if its job was about to be stopped for that; the job is gone."""
        if self._ending is None:
            return
        try:
            view = leases.follow(self._db, self.lease)
            groups.forget(self._db, self._job_of(view))
            self._fail_or_retry(view, self._ending)
        except LeaseLost as error:
            log.info("%s", error)

    def _step(self, cluster: Cluster, view: FollowView, stood: Stood) -> bool:
        if view.cancel_requested:
            self._ending = Ending(ExperimentState.CANCELLED, Reason.CANCELLED_BY_USER, "cancelled on request")
        status = self._job(cluster, view) if view.attempt else None
        if view.ray_job_id is None:
            if status is None:
                return self._begin(cluster, view)
            # Submitted by a dispatcher that died before it could write so.
            self._note_job(cluster, view.attempt)
        if self._ending is None and view.warm and not view.has_reported and view.reported_outcome is None:
            lost = self._lost_handover(view, status, stood)
            if lost is not None:
                if status is None or status.state in FINAL_STATES:
                    groups.forget(self._db, self._job_of(view))
                return self._begin_anew(view, Reason.GROUP_LOST, lost)
        if self._ending is None:
            self._ending = self._deadlines.passed(view, status, stood)
        if self._ending is not None:
            return self._end_job(cluster, view, status)
        if view.state is ExperimentState.STARTING and not view.warm:
            # Its ranks may be waiting for what such a group holds.
            groups.end_idle(self._db, but=self._job_of(view))
        if status is None or status.state in FINAL_STATES:
            return self._judge(cluster, view, status)
        self._ended_since_s = None
        return True

    def _begin(self, cluster: Cluster, view: FollowView) -> bool:
        ending = self._ending or self._deadlines.whole(view)
        if ending is not None:
            return self._finish(ending)
        pause = switches.queue_pause(self._db)
        if pause is not None:
            # Back to the queue, an attempt that is to be made anew too: it would hold a place that others may need.
            leases.release(self._db, self.lease, message=f"the queue is paused: {pause}")
            return False
        self._keep()
        capacity = cluster.capacity()
        problem = self._does_not_fit(capacity)
        if problem is not None:
            return self._finish(Ending(ExperimentState.FAILED, Reason.NO_CAPACITY, problem))
        shape = Shape.of(self._plan, capacity, self._settings)
        if self._token is None or self._token.attempt != view.attempt:
            if not view.handovers_lost and self._settings.keep_group_s > 0:
                group_id = leases.begin_warm_attempt(self._db, self.lease, shape, cluster.dashboard_url)
                if group_id is not None:
                    # What the log holds now is all of the experiments before.
                    self._keep()
                    job_logs.copy_all(self._db, cluster, job=group_id)
                    return True
                if groups.comes_back(self._db, shape):
                    return True
            self._token = leases.begin_attempt(self._db, self.lease)
            self._group_token = None
        groups.end_idle(self._db)
        return self._submit(cluster, shape, self._token)

    def _submit(self, cluster: Cluster, shape: Shape, token: IngestToken) -> bool:
        name = job_id(self.lease.experiment_id, token.attempt)
        if self._group_token is None:
            self._group_token = groups.register(
                self._db, name, shape, self.lease.experiment_id, token.attempt
            )
        if self._offered_since_s is None:
            self._offered_since_s = self._clock_s()
        self._keep()
        try:
            cluster.submit(
                name,
                python=self._settings.ray_python,
                environment={
                    JobVariable.SERVICE_URL: self._settings.service_url,
                    JobVariable.SERVICE_URLS: " ".join(heartbeats.service_urls(self._db)),
                    JobVariable.EXPERIMENT_ID: self.lease.experiment_id,
                    JobVariable.INGEST_TOKEN: token.token,
                    JobVariable.GROUP_ID: name,
                    JobVariable.GROUP_TOKEN: self._group_token,
                },
                name=self._name,
            )
        except ClusterError as error:
            # It can have got through all the same: the id is looked up before anything else.
            self._keep()
            if cluster.status(name) is None:
                return self._not_taken(error)
        self._token = self._group_token = self._offered_since_s = None
        self._note_job(cluster, token.attempt)
        return True

    def _not_taken(self, error: ClusterError) -> bool:
        assert self._offered_since_s is not None
        is_final = isinstance(error, ClusterRefused) or (
            not isinstance(error, ClusterUnreachable)
            and self._clock_s() - self._offered_since_s >= SUBMIT_AGAIN_S
        )
        if is_final:
            return self._finish(Ending(ExperimentState.FAILED, Reason.SUBMIT_FAILED, str(error)))
        raise error

    def _does_not_fit(self, capacity: Capacity) -> str | None:
        problems = [problem for problem in check(self._plan, capacity) if problem.severity == "error"]
        return "; ".join(f"{problem.field}: {problem.message}" for problem in problems) or None

    def _without_answer(self, view: FollowView, error: ClusterError) -> bool:
        """Ray says nothing of use. Whatever runs is left alone; what is to end waits, but not for ever."""
        now_s = self._clock_s()
        if self._unanswered_since_s is None:
            log.warning("%s: %s; trying again", self.lease.experiment_id, error)
            self._unanswered_since_s = now_s
        # Another attempt needs Ray, so an end after which one would be made waits for the whole deadline.
        ending = self._ending if self._ending and self._ending.reason not in RETRIED else None
        ending = ending or self._deadlines.whole(view)
        away_s = now_s - self._unanswered_since_s
        if ending is None or away_s <= self._settings.silence_deadline_s:
            return True
        # Its job is stopped by whoever looks after groups, once Ray answers.
        groups.give_up(self._db, self._job_of(view), self.lease.experiment_id)
        state = ExperimentState.LOST if ending.state is ExperimentState.FAILED else ending.state
        message = f"{ending.message}; Ray has given no answer for {away_s:.0f} s, so what became of its job is unknown"
        return self._finish(Ending(state, ending.reason, message))

    def _lost_handover(self, view: FollowView, status: JobStatus | None, stood: Stood) -> str | None:
        """Why the group that stood ready will not make this attempt; None while it may, or is about to."""
        if status is None or status.state in FINAL_STATES:
            return "the worker group that stood ready was lost before it began; a new one is started"
        if view.offered_at is None or max(stood.offered, age_s(view.offered_at, view.now)) <= HANDOVER_S:
            return None
        if not groups.give_up(self._db, view.ray_job_id or "", self.lease.experiment_id):
            return None
        return (
            f"the worker group that stood ready did not begin within {HANDOVER_S:g} s; a new one is started"
        )

    def _judge(self, cluster: Cluster, view: FollowView, status: JobStatus | None) -> bool:
        """The job is over, and the experiment is not: says why, after its last events had time to arrive."""
        if self._ended_since_s is None:
            self._ended_since_s = self._clock_s()
        if self._clock_s() - self._ended_since_s < LATE_EVENTS_S and status is not None:
            return True
        self._ended_since_s = None
        self._keep()
        verdict = judged(self._db, cluster, self.lease.experiment_id, self._job_of(view), view, status)
        groups.forget(self._db, self._job_of(view))
        return self._fail_or_retry(view, verdict)

    def _fail_or_retry(self, view: FollowView, ending: Ending) -> bool:
        if ending.reason in RETRIED and view.starts < self._settings.attempts:
            return self._begin_anew(view, ending.reason, ending.message)
        return self._finish(ending)

    def _begin_anew(self, view: FollowView, reason: Reason, message: str) -> bool:
        """Another attempt, in a worker group of its own: what befell this one may be the group's fault."""
        log.warning("%s: attempt %d: %s", self.lease.experiment_id, view.attempt, message)
        self._token = leases.begin_attempt(self._db, self.lease, reason=reason, message=text(message))
        self._group_token = None
        return True

    def _end_job(self, cluster: Cluster, view: FollowView, status: JobStatus | None) -> bool:
        """Stops the job; the experiment ends only when the job has, so that no board is still held then."""
        assert self._ending is not None
        if status is None or status.state in FINAL_STATES:
            ending, self._ending, self._stopped_at_s = self._ending, None, None
            groups.forget(self._db, self._job_of(view))
            return self._fail_or_retry(view, ending)
        now_s = self._clock_s()
        if self._stopped_at_s is None or now_s - self._stopped_at_s > STOP_AGAIN_S:
            if not groups.give_up(self._db, self._job_of(view), self.lease.experiment_id):
                return True  # the experiment ended in this moment, and its group has gone on to another
            self._keep()
            cluster.stop(self._job_of(view))
            self._stopped_at_s = now_s
        return True

    def _job(self, cluster: Cluster, view: FollowView) -> JobStatus | None:
        return cluster.status(self._job_of(view))

    def _job_of(self, view: FollowView) -> str:
        """The Ray job of this attempt: as written down, or under which it was submitted if anywhere."""
        return view.ray_job_id or job_id(self.lease.experiment_id, view.attempt)

    def _note_job(self, cluster: Cluster, attempt: int) -> None:
        name = job_id(self.lease.experiment_id, attempt)
        leases.mark_starting(self._db, self.lease, name, cluster.dashboard_url(name))

    def _finish(self, ending: Ending) -> bool:
        log.info("%s: %s (%s)", self.lease.experiment_id, ending.state, ending.reason)
        # Ray's words may be in it, and in those what the job was started with, its token too.
        leases.finish(self._db, self.lease, ending.state, ending.reason, text(ending.message))
        return False


def job_id(experiment_id: str, attempt: int) -> str:
    """The Ray job that an attempt is submitted as: its experiment's id, with its number from the second on."""
    return experiment_id if attempt <= 1 else f"{experiment_id}-attempt-{attempt}"
