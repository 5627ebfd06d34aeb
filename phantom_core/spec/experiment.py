"""One experiment: its parts together."""

from typing import Self

from pydantic import Field, field_validator, model_validator

from phantom_core.documents import parse_document
from phantom_core.spec.arms import Arm
from phantom_core.spec.fields import Name, SpecModel, TagKey, TagValue, Text
from phantom_core.spec.measurement import MeasurementSpec
from phantom_core.spec.model import ModelSpec
from phantom_core.spec.resources import ResourceSpec
from phantom_core.spec.tasks import Task
from phantom_core.spec.training import TrainingSpec

MAX_ARMS = 32
"""Most arms in one experiment, controls not counted."""


class ExperimentSpec(SpecModel):
    """One task, one model shape, one recipe, several arms."""

    name: Name
    """Shown in lists and in Ray's dashboard."""
    description: Text = ""
    """Free text."""
    tags: dict[TagKey, TagValue] = Field(default_factory=dict, max_length=32)
    """Keys and values to find the experiment by."""
    task: Task
    """What is learned."""
    model: ModelSpec
    """The network."""
    training: TrainingSpec
    """The recipe."""
    arms: list[Arm] = Field(min_length=1, max_length=MAX_ARMS)
    """The ways to do it."""
    baseline: Name | None = None
    """Arm to compare the others with; None: the first column/row tensor arm, first tensor arm or first arm."""
    controls: bool = True
    """Adds tensor arms of each phantom arm's width and of its weights, block-diagonal and low-rank arms."""
    measurement: MeasurementSpec = MeasurementSpec()
    """How it is measured."""
    resources: ResourceSpec = ResourceSpec()
    """What it may take."""

    @field_validator("arms")
    @classmethod
    def _names_unique(cls, arms: list[Arm]) -> list[Arm]:
        names = [arm.name for arm in arms]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"arm names {repeated} occur more than once; give every arm its own name")
        return arms

    @model_validator(mode="after")
    def _baseline_exists(self) -> Self:
        names = [arm.name for arm in self.arms]
        if self.baseline is not None and self.baseline not in names:
            raise ValueError(f"baseline = {self.baseline!r} names no arm; the arms are {names}")
        return self


def load_spec(text: str) -> ExperimentSpec:
    """Parses a spec from JSON or YAML text.

    Args:
        text: The document; JSON is tried first, then YAML.

    Returns:
        The validated spec; shapes that only make sense together are not checked yet (see `checks.check`).

    Raises:
        DocumentError: The text is neither JSON nor YAML, or holds no mapping (a ValueError).
        pydantic.ValidationError: A field is wrong (a ValueError); `problems.problems_of` words it for people.
    """
    return ExperimentSpec.model_validate(parse_document(text))
