"""How a run on all ranks of its arm ended, in the words of the protocol."""

from collections.abc import Sequence
from dataclasses import dataclass

from phantom_core.cost import arm_cost
from phantom_core.plan import PlannedArm
from phantom_core.protocol import Carried, Reason, RunFinished, RunOutcome
from phantom_core.stopping import Stop, StopReason
from phantom_core.tasks import Dataset
from phantom_core.training import Trainer
from ray_jobs.run_state import State


@dataclass(frozen=True)
class Failure:
    """Why a rank could not go on."""

    reason: Reason
    message: str
    at_s: float
    """When, in seconds since 1970: the others fail later, of waiting for the first."""


@dataclass(frozen=True)
class MeasuredCosts:
    """What one rank's trainer counted; None where it could not."""

    peak_memory_bytes: int | None
    bytes_sent_per_step: int | None

    @classmethod
    def of(cls, trainer: Trainer | None) -> "MeasuredCosts":
        """Of a trainer, if there is one."""
        if trainer is None:
            return cls(None, None)
        return cls(trainer.peak_memory_bytes(), trainer.bytes_sent_per_step)


@dataclass(frozen=True)
class Ending:
    """How it ended, as all ranks of the arm agree."""

    outcome: RunOutcome
    failures: Sequence[Failure]
    """Of the ranks that could not go on."""
    message: str | None
    """Of the stop rule."""
    costs: Sequence[MeasuredCosts]
    """Of every rank."""
    carried: tuple[Carried, ...]
    """Earlier attempts that it went on from."""

    def told(
        self, planned: PlannedArm, dataset: Dataset, state: State, trainer: Trainer | None
    ) -> RunFinished:
        """The run's last event.

        Args:
            planned: The arm.
            dataset: What it trained on.
            state: Where it ended.
            trainer: This rank's; None if it was not built.
        """
        reason, message = self._cause()
        reached = state.has_reached(planned.training.stop)
        peaks = [cost.peak_memory_bytes for cost in self.costs if cost.peak_memory_bytes is not None]
        sent = [cost.bytes_sent_per_step for cost in self.costs if cost.bytes_sent_per_step is not None]
        return RunFinished(
            outcome=self.outcome,
            reason=reason,
            message=message,
            steps=state.step,
            samples=state.step * planned.training.batch_size,
            training_s=state.training_s,
            final_train_loss=state.train_loss,
            final_evaluation_loss=state.evaluation_loss,
            target_step=state.step if reached else None,
            energy_to_target_mj=state.energy_mj if reached else None,
            seconds_to_target=state.training_s if reached else None,
            step_mode=trainer.step_mode if trainer else None,
            step_mode_reason=trainer.step_mode_reason if trainer else None,
            compiled=trainer.compiled if trainer else None,
            exchange=trainer.exchange.name if trainer else None,
            exchange_reason=trainer.exchange.reason if trainer else None,
            parameters=trainer.parameters_total if trainer else None,
            peak_memory_bytes=max(peaks) if peaks else None,
            flops_per_step=arm_cost(planned, dataset.shape, dataset.placement).step_flops,
            bytes_sent_per_step=sum(sent) if len(sent) == len(self.costs) else None,
            carried=self.carried,
        )

    def _cause(self) -> tuple[Reason | None, str | None]:
        if self.failures:
            first = min(self.failures, key=lambda failure: failure.at_s)
            return first.reason, first.message
        message = self.message
        if self.carried:
            last = self.carried[-1]
            went_on = f"went on at step {last.steps:,} from what attempt {last.attempt} had saved"
            message = f"{message}; {went_on}" if message else went_on
        return _REASONS.get(self.outcome), message


def outcome_of(stop: Stop) -> RunOutcome:
    """What a run has come to where its stop rule ends it."""
    if stop.diverged:
        return "diverged"
    return "failed" if stop.reason is StopReason.ENERGY_UNKNOWN else "succeeded"


def first_line(error: Exception) -> str:
    """Of an error's message."""
    return (str(error).splitlines() or [""])[0][:500]


_REASONS: dict[RunOutcome, Reason] = {
    "diverged": Reason.NON_FINITE_LOSS,
    "failed": Reason.ENERGY_UNKNOWN,  # the only failure that is no error: the rule could not be watched
}
