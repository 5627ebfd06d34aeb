"""A dispatcher's hold on an experiment, and whether it still is one."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from services.moves import lock_experiment
from services.states import ExperimentState
from services.tables import Experiment


@dataclass(frozen=True)
class Lease:
    """One dispatcher's hold on one experiment."""

    experiment_id: str
    """The experiment."""
    token: str
    """Proves the hold; every claim makes a new one."""
    owner: str
    """Which dispatcher."""
    state: ExperimentState
    """The experiment's state when it was claimed: `leased`, or that of one taken over."""
    attempt: int = 0
    """Starts of its job so far."""
    ray_job_id: str | None = None
    """The job of the last attempt, if it was submitted."""


def held(session: Session, lease: Lease) -> Experiment | None:
    """The experiment, locked, if the lease still holds. One that ran out holds until somebody takes over."""
    experiment = lock_experiment(session, lease.experiment_id)
    return experiment if experiment is not None and experiment.lease_token == lease.token else None
