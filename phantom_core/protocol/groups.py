"""What a worker group asks once its experiment is made, what it is told, and how it ended."""

from typing import Annotated, Literal

from pydantic import Field

from phantom_core.protocol.words import Reason, Wire


class NextRequest(Wire):
    """Body of `POST /internal/v1/next`: a worker group is done and asks what to do."""

    group_id: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,120}$")]
    """The group."""
    finished: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,64}$")]
    """The experiment that it made last; tells a lost answer from a new question."""
    device: Literal["cuda", "cpu"]
    """Where its ranks run."""


class NextAnswer(Wire):
    """What a worker group is to do."""

    action: Literal["wait", "begin", "end"]
    """Ask again in a moment, make the experiment below, or end."""
    experiment_id: str | None = None
    """What to make, with `begin`."""
    token: str | None = Field(None, repr=False)
    """That experiment's own ingest token."""


class GroupEnded(Wire):
    """Body of `POST /internal/v1/group-ended`: the job's driver saw its worker group end."""

    group_id: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,120}$")]
    """The group."""
    outcome: Literal["succeeded", "failed", "cancelled"]
    """How, and with that how the experiment that it was making ends."""
    reason: Reason | None = None
    """Why, unless it was told to end."""
    message: Annotated[str, Field(max_length=4_000)] | None = None
    """One sentence for a person."""
