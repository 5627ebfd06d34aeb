"""A leased experiment in a dispatcher's hands: followed while that works, and ended at its deadline if it does not.

A fault of the service's own in following one experiment (`mishaps.py`) changes nothing about its job, which may train
on and report its end. But a cancel or the whole deadline must not wait for ever on code that fails: then the
experiment ends by what little can be known without that code.
"""

import logging
import time
from collections.abc import Callable

from pydantic import ValidationError

from phantom_core.protocol import Reason
from phantom_core.spec import ResourceSpec
from services import groups, leases
from services.cluster import Cluster
from services.database import Database, now
from services.deadlines import Age, Ending
from services.following import Follower, job_id
from services.leases import Lease
from services.settings import Settings
from services.states import ExperimentState
from services.tables import Experiment

log = logging.getLogger(__name__)


class Followed:
    """One experiment, its lease and, once there is one, its follower."""

    def __init__(
        self,
        db: Database,
        lease: Lease,
        settings: Settings,
        *,
        keep: Callable[[], object] = lambda: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: those of `Follower`."""
        self.lease = lease
        self.renewed_s = clock_s()
        """When its lease was made or renewed, by the clock."""
        self._db = db
        self._settings = settings
        self._keep = keep
        self._clock_s = clock_s
        self._follower: Follower | None = None
        self._age = Age(clock_s)

    def step(self, cluster: Cluster) -> bool:
        """Looks once; see `Follower.step`.

        Returns:
            Whether there is more to do.
        """
        if self._follower is None:
            try:
                self._follower = Follower(
                    self._db, self.lease, self._settings, keep=self._keep, clock_s=self._clock_s
                )
            except ValueError as error:
                # Tried again, it would fail again for ever.
                message = f"its stored spec can't be used by this version; submit it anew: {error}"
                self._end(Ending(ExperimentState.FAILED, Reason.SUBMIT_FAILED, message), None)
                return False
        return self._follower.step(cluster)

    def conclude(self) -> None:
        """Ends the experiment if that was decided, since its job is gone; see `Follower.conclude`."""
        if self._follower is not None:
            self._follower.conclude()

    def end_if_due(self, failing_s: float, error: str) -> bool:
        """Ends the experiment if somebody cancelled it or its deadline has passed, and following it goes on failing.

        Args:
            failing_s: Seconds for which it has failed.
            error: What went wrong last.

        Returns:
            Whether there is no more to do.
        """
        if failing_s <= self._settings.silence_deadline_s:
            return False
        with self._db.read() as session:
            experiment = session.get(Experiment, self.lease.experiment_id)
            if experiment is None or experiment.lease_token != self.lease.token:
                return True
            job = experiment.ray_job_id or job_id(experiment.id, experiment.attempt)
            is_cancelled = experiment.cancel_requested_at is not None
            waited_s = 0.0
            if experiment.leased_at is not None:
                attempts = leases.attempts_of(session, experiment.id)
                first = leases.first_leased_at(attempts, experiment.leased_at)
                waited_s = self._age.look(first, now(session))
            deadline_s = _deadline_s(experiment.spec)
        how = (
            f"the service has failed at following it for {failing_s:.0f} s ({error}; its log says more), so what "
            "became of its job is unknown"
        )
        if is_cancelled:
            message = f"cancelled on request; {how}"
            ending = Ending(ExperimentState.CANCELLED, Reason.CANCELLED_BY_USER, message)
        elif waited_s > deadline_s:
            message = f"not finished {deadline_s:g} s after it was first taken from the queue; {how}"
            ending = Ending(ExperimentState.LOST, Reason.DEADLINE, message)
        else:
            return False
        self._end(ending, job)
        return True

    def _end(self, ending: Ending, job: str | None) -> None:
        log.warning("%s: %s: %s", self.lease.experiment_id, ending.state, ending.message)
        job = job or self.lease.ray_job_id or job_id(self.lease.experiment_id, self.lease.attempt)
        # Whoever looks after worker groups stops the job: none of this experiment's code need work for that.
        groups.give_up(self._db, job, self.lease.experiment_id)
        leases.finish(self._db, self.lease, ending.state, ending.reason, ending.message)


def _deadline_s(spec: object) -> float:
    """The whole deadline that a stored spec asks for; the default if it can't be read."""
    try:
        told = spec.get("resources") if isinstance(spec, dict) else None
        return ResourceSpec.model_validate(told or {}).deadline_s
    except ValidationError:
        return ResourceSpec().deadline_s
