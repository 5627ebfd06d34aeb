"""What all ranks of an arm know of a run's training so far."""

from dataclasses import dataclass, field

from phantom_core.protocol import MetricPoint
from phantom_core.spec import StopRule
from phantom_core.stopping import StopState
from ray_jobs.spent import Spent


@dataclass(frozen=True)
class State:
    """Steps, losses, and what they took."""

    step: int = 0
    spent: Spent = field(default_factory=Spent)
    """In the training windows."""
    train_loss: float | None = None
    evaluation_loss: float | None = None

    @property
    def training_s(self) -> float:
        """Seconds of the training windows."""
        return self.spent.seconds

    @property
    def energy_mj(self) -> float | None:
        """Millijoules of the training windows over the arm's devices; None if unknown."""
        return self.spent.energy_mj

    @property
    def for_stop_rule(self) -> StopState:
        """As stop rules see it."""
        return StopState(
            step=self.step,
            training_s=self.training_s,
            energy_mj=self.energy_mj,
            evaluation_loss=self.evaluation_loss,
            train_loss=self.train_loss,
        )

    @property
    def points(self) -> tuple[MetricPoint, ...]:
        """The losses as points of their series; those that are known."""
        values = {"train_loss": self.train_loss, "evaluation_loss": self.evaluation_loss}
        return tuple(
            MetricPoint(
                step=self.step,
                name=name,
                value=value,
                energy_mj=self.energy_mj,
                training_s=self.training_s,
            )
            for name, value in values.items()
            if value is not None
        )

    def has_reached(self, rule: StopRule) -> bool:
        """Whether a target that the rule sets for the loss is reached."""
        loss = self.evaluation_loss
        return rule.kind == "target_loss" and loss is not None and loss <= rule.target_loss
