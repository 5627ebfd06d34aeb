"""Which deadline an experiment under way has passed: for the whole of it, its ranks' start, silence, standing still.

Silence and waiting are counted from when a follower began at the earliest, and anew when it could not look for as long
as a lease lasts: while no service ran, no event could arrive. They are counted by a monotonic clock, since the one that
the database goes by may be stepped. Whether ranks stand still they find out themselves (`ray_jobs/standstill.py`).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from phantom_core.plan import Plan
from phantom_core.protocol import Reason
from services.cluster import FINAL_STATES, JobStatus
from services.leases import FollowView
from services.settings import Settings
from services.standing import Standing
from services.states import ExperimentState


@dataclass(frozen=True)
class Ending:
    """How an experiment is to end once its job is gone."""

    state: ExperimentState
    """Terminal."""
    reason: Reason
    """Why."""
    message: str
    """The same for a person."""


@dataclass(frozen=True)
class Stood:
    """Seconds for which an experiment has stood still in some respect."""

    starting: float
    """Since its job was handed over."""
    heard: float
    """Since the last sign of life from its ranks."""
    offered: float
    """Since it was offered to a worker group."""

    @classmethod
    def in_database(cls, view: FollowView) -> "Stood":
        """As the database's clock has it, whoever followed."""
        heard_at = view.last_event_at or view.running_at
        moments = (view.starting_at, heard_at, view.offered_at)
        return cls(*(0.0 if moment is None else age_s(moment, view.now) for moment in moments))


class Age:
    """For how long an experiment has been under way: by the database at the first look, then by a monotonic clock."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        """Args: a monotonic clock."""
        self._clock_s = clock_s
        self._taken: tuple[datetime, float] | None = None

    def look(self, leased_at: datetime, moment: datetime) -> float:
        """Seconds since it was first taken from the queue.

        Args:
            leased_at: When that was, by the database (`leases.first_leased_at`).
            moment: Now, by the database.
        """
        if self._taken is None or self._taken[0] != leased_at:
            self._taken = (leased_at, self._clock_s() - age_s(leased_at, moment))
        return self._clock_s() - self._taken[1]


class Deadlines:
    """One experiment's deadlines, as one follower counts them."""

    def __init__(self, plan: Plan, settings: Settings, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Args: what the experiment asks for, how long silence may last, a monotonic clock."""
        self._plan = plan
        self._resources = plan.spec.resources
        self._settings = settings
        self._standing = Standing(clock_s, settings.lease_ttl_s)
        self._age = Age(clock_s)

    def look(self, view: FollowView) -> Stood:
        """For how long it has been seen to stand still; to be asked at every look."""
        stood_s = self._standing.look(
            {
                "starting": (view.attempt, view.starting_at),
                "heard": (view.attempt, view.last_event_at or view.running_at),
                "offered": (view.attempt, view.offered_at),
            }
        )
        return Stood(**stood_s)

    def passed(self, view: FollowView, status: JobStatus | None, stood: Stood) -> Ending | None:
        """Which deadline has passed. A job that ended by itself is judged by its end instead."""
        if status is None or status.state in FINAL_STATES - {"STOPPED"}:
            return None
        if status.state == "STOPPED":
            # Perhaps by a dispatcher that died since, for a deadline: only the database knows of that.
            stood = Stood.in_database(view)
        return (
            self.whole(view)
            or _standing_still(view)
            or self._unscheduled(view, status, stood)
            or self._silent(view, stood)
        )

    def whole(self, view: FollowView) -> Ending | None:
        """The deadline for all of it, from its first start on, however many attempts are made."""
        deadline_s = self._resources.deadline_s
        if self._age.look(view.first_leased_at, view.now) <= deadline_s:
            return None
        return Ending(
            ExperimentState.FAILED,
            Reason.DEADLINE,
            f"not finished {deadline_s:g} s after it was first taken from the queue; "
            "raise resources.deadline_s, or train less",
        )

    def _unscheduled(self, view: FollowView, status: JobStatus, stood: Stood) -> Ending | None:
        if view.state is not ExperimentState.STARTING or view.starting_at is None:
            return None
        deadline_s = self._resources.scheduling_deadline_s
        if stood.starting <= deadline_s:
            return None
        if status.state != "PENDING" and not view.has_asked:
            return Ending(
                ExperimentState.FAILED,
                Reason.SERVICE_UNREACHED,
                f"its job runs, but no word of it has reached the service within {deadline_s:g} s: "
                f"GHOSTWATT_SERVICE_URL = {self._settings.service_url} must be an address that the cluster's "
                "machines reach",
            )
        return Ending(
            ExperimentState.FAILED,
            Reason.SCHEDULING_DEADLINE,
            f"its {self._plan.world_size} ranks did not start within {deadline_s:g} s: the cluster is busy or "
            "misses resources; raise resources.scheduling_deadline_s or free the boards",
        )

    def _silent(self, view: FollowView, stood: Stood) -> Ending | None:
        heard_at = view.last_event_at or view.running_at
        if view.state is not ExperimentState.RUNNING or heard_at is None:
            return None
        deadline_s = self._settings.silence_deadline_s
        if stood.heard <= deadline_s:
            return None
        return Ending(
            ExperimentState.FAILED,
            Reason.SILENCE_DEADLINE,
            f"no sign of life from its ranks for {deadline_s:g} s",
        )


def _standing_still(view: FollowView) -> Ending | None:
    """What its ranks have told of themselves: they live, and none of them gets on."""
    if view.reported_reason is not Reason.NO_PROGRESS:
        return None
    return Ending(
        ExperimentState.FAILED, Reason.NO_PROGRESS, view.reported_message or "its ranks stand still"
    )


def age_s(since: datetime, now: datetime) -> float:
    """Seconds between two moments of one clock; 0 if it was stepped back between them."""
    return max(0.0, (now - since).total_seconds())
