"""When a run ends."""

from typing import Annotated, Literal

from pydantic import Field

from phantom_core.spec.fields import Number, SpecModel, Whole


class HardLimits(SpecModel):
    """Bounds under which every run ends, whatever its stop rule hopes for."""

    max_steps: Whole = Field(100_000, ge=1, le=1_000_000_000)
    """Optimizer steps after which a run ends regardless."""
    max_seconds: Number = Field(3_600, gt=0, le=604_800)
    """Training seconds after which a run ends regardless (checked at every evaluation)."""


class StopAtSteps(HardLimits):
    """Train a fixed number of steps."""

    kind: Literal["steps"] = "steps"
    steps: Whole = Field(ge=1, le=1_000_000_000)
    """Optimizer steps."""


class StopAtTargetLoss(HardLimits):
    """Train until the evaluation loss is at or under a target: what `at the same loss` means."""

    kind: Literal["target_loss"] = "target_loss"
    target_loss: Number = Field(gt=0)
    """Evaluation loss to reach: mean cross-entropy in nats, or mean squared error."""


class StopAtSeconds(HardLimits):
    """Train for a fixed time."""

    kind: Literal["seconds"] = "seconds"
    seconds: Number = Field(gt=0, le=604_800)
    """Training seconds, evaluation and set-up not counted (checked at every evaluation)."""


class StopAtJoules(HardLimits):
    """Train until the training windows have used a number of joules, summed over the arm's boards."""

    kind: Literal["joules"] = "joules"
    joules: Number = Field(gt=0, le=1e12)
    """Gross joules of the training windows (checked at every evaluation)."""


StopRule = Annotated[
    StopAtSteps | StopAtTargetLoss | StopAtSeconds | StopAtJoules, Field(discriminator="kind")
]
