"""One thing that happened, whatever it is, and many of them in one request."""

from typing import Annotated

from pydantic import AwareDatetime, Field, TypeAdapter

from phantom_core.protocol.experiment_events import Alive, ExperimentFinished, ExperimentStarted, Progress
from phantom_core.protocol.run_events import RunFinished, RunSkipped, RunStarted, Window
from phantom_core.protocol.series import BoardStates, Metrics, PowerSamples, SamplerEnded
from phantom_core.protocol.words import Wire

SAMPLER_SOURCE = "sampler-"
"""How a sampler's name begins as the source of an event: of a process that may outlive the ranks."""

Payload = Annotated[
    ExperimentStarted
    | RunStarted
    | Window
    | Metrics
    | PowerSamples
    | BoardStates
    | SamplerEnded
    | RunFinished
    | RunSkipped
    | ExperimentFinished
    | Progress
    | Alive,
    Field(discriminator="kind"),
]


class Event(Wire):
    """One thing that happened, told once."""

    subject_id: Annotated[str, Field(max_length=64)]
    """Id of the run it belongs to, else of the experiment."""
    attempt: Annotated[int, Field(ge=1)]
    """Attempt of the run, or of the experiment."""
    source: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]
    """Who says it: `rank-0`, `pulse`, `pulse-straight`, `sampler-<host>`, `end`."""
    seq: Annotated[int, Field(ge=0)]
    """Counts the source's events of this job, from 0."""
    at: AwareDatetime
    """When it happened, UTC."""
    payload: Payload
    """What happened."""


class EventBatch(Wire):
    """Body of `POST /internal/v1/events`."""

    experiment_id: str
    """The experiment that all of them belong to."""
    events: tuple[Event, ...] = Field(max_length=1_000)
    """In order of `seq` per source."""


EVENT_ADAPTER: TypeAdapter[Event] = TypeAdapter(Event)
"""Parses one event from JSON."""
