"""Where in a spec the settings of a planned arm stand, for messages that must point there. Torch-free."""

from dataclasses import dataclass
from typing import Literal

from phantom_core.plan import Plan, PlannedArm


@dataclass(frozen=True)
class LocatedArm:
    """A planned arm and the place of the user's arm that it is, or is a control of."""

    planned: PlannedArm
    """The arm."""
    index: int
    """Place in the spec's `arms`."""

    @property
    def path(self) -> str:
        """Dotted path of the user's arm."""
        return f"arms.{self.index}"

    @property
    def words(self) -> str:
        """The arm's name for a message, and what it controls."""
        name = f"arm {self.planned.name!r}"
        return f"{name} (a control of {self.planned.control_of[0]!r})" if self.planned.control_of else name

    def field(self, group: Literal["model", "training"], name: str) -> str:
        """Dotted path of a setting: the arm's own, where it overrides the experiment's."""
        overridden = getattr(getattr(self.planned.arm, group), name) is not None
        return f"{self.path}.{group}.{name}" if overridden else f"{group}.{name}"


def located_arms(plan: Plan) -> list[LocatedArm]:
    """All arms of a plan, controls included, in its order."""
    places = {arm.name: index for index, arm in enumerate(plan.spec.arms)}
    return [LocatedArm(planned, places[(planned.control_of or (planned.name,))[0]]) for planned in plan.arms]
