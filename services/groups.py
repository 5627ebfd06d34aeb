"""Worker groups that stay for the next experiment: the dispatcher's side of them.

A group is a Ray job whose ranks make one experiment and then ask for another (`group_calls.py`). Every change is a
compare-and-set on its state under the row's lock; whoever locks an experiment too locks that first.

    working -> idle -> offered -> working -> ... -> ending, and then the row goes

Only a group whose experiment succeeded without a failed run becomes idle; a crash, a cancel or a deadline ends it.
"""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, delete, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

import phantom_core
from phantom_core.capacity import Capacity, device_for
from phantom_core.plan import Plan
from services.database import Database, now
from services.settings import Settings
from services.states import ExperimentState, GroupState
from services.tables import Experiment, WorkerGroup

FRESH_S = 5.0
"""A group that has not asked for so long is offered nothing: it asks twice a second."""
COMES_BACK_S = 10.0
"""Seconds after its experiment's end in which a group is worth waiting for: it cleans up before it asks."""
SUSPECT_S = 5.0
"""Seconds without a question, where one is due, after which Ray is asked whether a group's job still runs."""
NEGLECTED_S = 15.0
"""Seconds without a question after which an idle or ending group's job is stopped."""
FORGOTTEN_S = 120.0
"""The same for one that works on something that is over: its last events may take a while to deliver."""


@dataclass(frozen=True)
class Shape:
    """What two experiments must have in common to be made by the same ranks; see docs/decisions."""

    world_size: int
    """Ranks of the largest arm, p."""
    device: str
    """`cuda` or `cpu`."""
    cpus_per_rank: float
    """CPU cores that Ray gives each rank."""
    service_url: str
    """Where the ranks report."""
    software: str
    """Version and interpreter that the ranks run."""

    @classmethod
    def of(cls, plan: Plan, capacity: Capacity, settings: Settings) -> "Shape":
        """The shape of a plan on a cluster."""
        return cls(
            world_size=plan.world_size,
            device=device_for(plan, capacity),
            cpus_per_rank=plan.spec.resources.cpus_per_rank,
            service_url=settings.service_url,
            software=f"ghostwatt {phantom_core.__version__}, {settings.ray_python}",
        )

    def matches(self) -> list[ColumnElement[bool]]:
        """That a group has this shape."""
        return [
            WorkerGroup.world_size == self.world_size,
            WorkerGroup.device == self.device,
            WorkerGroup.cpus_per_rank == self.cpus_per_rank,
            WorkerGroup.service_url == self.service_url,
            WorkerGroup.software == self.software,
        ]


@dataclass(frozen=True)
class Neglected:
    """A group that somebody must look after."""

    id: str
    """Its Ray job."""
    is_to_end: bool
    """Whether its job is to be stopped if it still runs; else only a look is due."""


def register(db: Database, group_id: str, shape: Shape, experiment_id: str, attempt: int) -> str:
    """Writes down a group whose job is about to be submitted.

    Args:
        db: The database.
        group_id: The Ray job's id.
        shape: What it is good for.
        experiment_id: What it makes first.
        attempt: Of that experiment.

    Returns:
        The group's token, for the only time.
    """
    token = f"gg_{secrets.token_urlsafe(32)}"
    with db.write() as session:
        moment = now(session)
        session.merge(
            WorkerGroup(
                id=group_id,
                token_hash=token_hash(token),
                state=GroupState.WORKING,
                experiment_id=experiment_id,
                attempt=attempt,
                service_url=shape.service_url,
                software=shape.software,
                world_size=shape.world_size,
                device=shape.device,
                cpus_per_rank=shape.cpus_per_rank,
                made_at=moment,
                seen_at=moment,
                since=moment,
            )
        )
    return token


def choose(session: Session, shape: Shape, moment: datetime) -> WorkerGroup | None:
    """An idle group that fits, locked; the one that was idle for the shortest time."""
    return session.scalars(
        select(WorkerGroup)
        .where(
            WorkerGroup.state == GroupState.IDLE,
            _is_within(WorkerGroup.seen_at, FRESH_S, moment),
            *shape.matches(),
        )
        .order_by(WorkerGroup.since.desc())
        .limit(1)
        .with_for_update(skip_locked=True)
    ).first()


def comes_back(db: Database, shape: Shape) -> bool:
    """Whether a group that fits has just succeeded and will ask in a moment."""
    with db.read() as session:
        moment = now(session)
        found = session.scalars(
            select(WorkerGroup.id)
            .join(Experiment, Experiment.id == WorkerGroup.experiment_id)
            .where(
                WorkerGroup.state == GroupState.WORKING,
                Experiment.attempt == WorkerGroup.attempt,
                Experiment.state == ExperimentState.SUCCEEDED,
                _is_within(Experiment.finished_at, COMES_BACK_S, moment),
                *shape.matches(),
            )
            .limit(1)
        ).first()
    return found is not None


def _is_within(
    at: InstrumentedAttribute[datetime] | InstrumentedAttribute[datetime | None],
    seconds: float,
    moment: datetime,
) -> ColumnElement[bool]:
    """Whether something was that short a time ago; what a clock that was set back has in its future was not."""
    span = timedelta(seconds=seconds)
    return at.between(moment - span, moment + span)


def move(group: WorkerGroup, to: GroupState, moment: datetime) -> None:
    """Changes the state of a locked group."""
    group.state, group.since = to, moment


def end_idle(db: Database, service_url: str | None = None, *, but: str | None = None) -> list[str]:
    """Tells idle groups to end: somebody needs what they hold, or the service that they ask ends.

    Args:
        db: The database.
        service_url: Only those that ask there; None for all.
        but: The one that needs it, which may have become idle a moment ago; None if none does.

    Returns:
        Their ids.
    """
    idle = select(WorkerGroup).where(WorkerGroup.state == GroupState.IDLE)
    if service_url is not None:
        idle = idle.where(WorkerGroup.service_url == service_url)
    if but is not None:
        idle = idle.where(WorkerGroup.id != but)
    with db.read() as session:
        if session.scalars(idle.limit(1)).first() is None:
            return []
    with db.write() as session:
        moment = now(session)
        groups = session.scalars(idle.with_for_update(skip_locked=True)).all()
        for group in groups:
            move(group, GroupState.ENDING, moment)
        return [group.id for group in groups]


def give_up(db: Database, group_id: str, experiment_id: str) -> bool:
    """Makes sure that a group takes nothing more after an experiment, so that its job may be stopped for that.

    Returns:
        Whether the job may be stopped. False if the group has gone on to another experiment.
    """
    with db.write() as session:
        group = locked(session, group_id)
        if group is None:
            return True
        if group.state != GroupState.ENDING:
            if group.experiment_id != experiment_id:
                return False
            move(group, GroupState.ENDING, now(session))
        return True


def neglected(db: Database) -> list[Neglected]:
    """Groups that have not asked for a while though they should."""
    with db.read() as session:
        moment = now(session)
        # Seen in what is the future since a clock was set back: nobody knows for how long it has been silent.
        unknown = WorkerGroup.seen_at > moment + timedelta(seconds=SUSPECT_S)
        waits = WorkerGroup.state.in_([GroupState.IDLE, GroupState.ENDING])
        over = or_(
            Experiment.id.is_(None),
            Experiment.finished_at.is_not(None),
            Experiment.attempt != WorkerGroup.attempt,
        )

        def silent(asking_s: float, working_s: float) -> ColumnElement[bool]:
            finished_before = moment - timedelta(seconds=working_s)
            return or_(
                waits & (WorkerGroup.seen_at < moment - timedelta(seconds=asking_s)),
                over
                & (WorkerGroup.seen_at < finished_before)
                & (Experiment.finished_at.is_(None) | (Experiment.finished_at < finished_before)),
            )

        found = session.execute(
            select(WorkerGroup.id, silent(NEGLECTED_S, FORGOTTEN_S))
            .outerjoin(Experiment, Experiment.id == WorkerGroup.experiment_id)
            .where(silent(SUSPECT_S, SUSPECT_S) | (unknown & (waits | over)))
        )
        return [Neglected(group_id, bool(is_to_end)) for group_id, is_to_end in found]


def end_neglected(db: Database, group_id: str) -> bool:
    """Lets a neglected group take nothing more.

    Returns:
        Whether its job may be stopped. False if it has spoken or was given something meanwhile.
    """
    with db.write() as session:
        group = locked(session, group_id)
        if group is None:
            return True
        moment = now(session)
        if group.seen_at >= moment - timedelta(seconds=NEGLECTED_S) or group.state == GroupState.OFFERED:
            return False
        if group.state != GroupState.ENDING:
            move(group, GroupState.ENDING, moment)
        return True


def forget(db: Database, group_id: str) -> None:
    """Removes a group whose job is over."""
    with db.write() as session:
        session.execute(delete(WorkerGroup).where(WorkerGroup.id == group_id))


def locked(session: Session, group_id: str) -> WorkerGroup | None:
    """A group, locked until the transaction ends; None if there is none."""
    return session.scalars(
        select(WorkerGroup)
        .where(WorkerGroup.id == group_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()


def token_hash(token: str) -> bytes:
    """What is kept of a token; it has 256 random bits, so that no slow hash is needed."""
    return hashlib.sha256(token.encode(errors="replace")).digest()
