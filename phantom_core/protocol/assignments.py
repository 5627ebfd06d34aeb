"""What the service tells a job: through its environment, and when the job asks for its assignment."""

from enum import StrEnum

from phantom_core.plan import Plan
from phantom_core.protocol.words import Wire

JOB_LOG_LINE = "ghostwatt: making "
"""With an experiment's id, the line of a job's log from which on the log is that experiment's."""

CHECKPOINT_FOLDER = "GHOSTWATT_CHECKPOINT_FOLDER"
"""Variable that may name the folder for checkpoints on a host: one that outlives the head that the service starts."""


class JobVariable(StrEnum):
    """What the service tells a job through its environment."""

    SERVICE_URL = "GHOSTWATT_SERVICE_URL"
    """Whom to report to."""
    SERVICE_URLS = "GHOSTWATT_SERVICE_URLS"
    """Addresses of all of the database's services that lived then, separated by blanks; may be empty."""
    EXPERIMENT_ID = "GHOSTWATT_EXPERIMENT_ID"
    """The experiment that the job was started for."""
    INGEST_TOKEN = "GHOSTWATT_INGEST_TOKEN"  # noqa: S105 (the variable's name, not a token)
    """Good for that experiment's attempt only."""
    GROUP_ID = "GHOSTWATT_GROUP_ID"
    """The worker group, named as the job."""
    GROUP_TOKEN = "GHOSTWATT_GROUP_TOKEN"  # noqa: S105
    """Good only for asking what the group does next, and for saying that it has ended."""


class AssignedRun(Wire):
    """One run that the job is to make."""

    run_id: str
    """The service's id."""
    attempt: int
    """Number of this start, from 1."""
    round: int
    """From 0."""
    position: int
    """Place in the round."""
    arm: str
    """Name of the arm in the plan."""
    seed: int
    """Seed of weights and batches."""


class MadeRun(Wire):
    """One run that an earlier start of the job has made."""

    round: int
    """From 0."""
    arm: str
    """Name of the arm in the plan."""
    figure: float | None
    """What the comparison rests on: millijoules per step, or to the target loss; None if there is no sound one."""


class Assignment(Wire):
    """All that a job needs to know; `GET /internal/v1/experiments/{id}/assignment`."""

    experiment_id: str
    """The service's id."""
    attempt: int
    """Number of this start of the job, from 1."""
    plan: Plan
    """The arms, resolved."""
    runs: tuple[AssignedRun, ...]
    """What is still to be made, in order."""
    made: tuple[MadeRun, ...] = ()
    """What was made before, for deciding how many rounds are needed."""
    data_roots: tuple[str, ...] = ()
    """Folders under which a `file` task's path may lie."""
    service_urls: tuple[str, ...] = ()
    """Addresses of the services that live now: any of them takes what the job has to tell."""


class ServiceAddresses(Wire):
    """The services that live now; `GET /internal/v1/services`."""

    urls: tuple[str, ...]
    """Base addresses, the one heard last first."""
