"""When a run ends: pure functions of what is known at an evaluation. Torch-free.

Loss, time and energy are looked at when an evaluation is made, every `evaluation_interval` steps, so a run
may pass its target, its seconds or its joules by up to one interval; it never passes its number of steps.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from phantom_core.spec import StopAtJoules, StopAtSeconds, StopAtSteps, StopAtTargetLoss, StopRule


class StopReason(StrEnum):
    """Why a run ended."""

    STEPS = "steps"
    TARGET_LOSS = "target_loss"
    SECONDS = "seconds"
    JOULES = "joules"
    MAX_STEPS = "max_steps"
    MAX_SECONDS = "max_seconds"
    NON_FINITE_LOSS = "non_finite_loss"
    ENERGY_UNKNOWN = "energy_unknown"


@dataclass(frozen=True)
class StopState:
    """What is known of a run at an evaluation."""

    step: int
    """Optimizer steps done."""
    training_s: float
    """Seconds of the training windows so far."""
    energy_mj: float | None
    """Gross millijoules of the training windows so far, over the arm's devices; None if unknown."""
    evaluation_loss: float | None
    """Loss on the evaluation rows now; None if not evaluated."""
    train_loss: float | None = None
    """Mean training loss since the last evaluation; None before the first step."""


@dataclass(frozen=True)
class Stop:
    """The run ends here."""

    reason: StopReason
    """Which rule or limit ended it."""
    message: str
    """One sentence for a person."""

    @property
    def diverged(self) -> bool:
        """Whether a loss was no longer a finite number."""
        return self.reason is StopReason.NON_FINITE_LOSS

    @property
    def reached(self) -> bool:
        """Whether the stop rule itself was met, rather than a limit or a failure."""
        return self.reason in (
            StopReason.STEPS,
            StopReason.TARGET_LOSS,
            StopReason.SECONDS,
            StopReason.JOULES,
        )


def decide(rule: StopRule, state: StopState) -> Stop | None:
    """Whether a run ends at this evaluation.

    Divergence comes first, then the rule's own goal, then the hard limits, so that a run which meets its
    goal on the last step allowed counts as having met it.

    Args:
        rule: The stop rule with its hard limits.
        state: What is known now.

    Returns:
        Why it ends, or None if it goes on.
    """
    for name, loss in (("evaluation", state.evaluation_loss), ("training", state.train_loss)):
        if loss is not None and not math.isfinite(loss):
            return Stop(
                StopReason.NON_FINITE_LOSS,
                f"the {name} loss is {loss} at step {state.step:,}; a lower learning rate may keep it finite",
            )
    return _goal(rule, state) or _limit(rule, state)


def next_interval(rule: StopRule, evaluation_interval: int, step: int) -> int:
    """Steps to train until the next evaluation, so that the last one falls exactly on the end.

    Args:
        rule: The stop rule with its hard limits.
        evaluation_interval: Steps between evaluations; they fall on its multiples.
        step: Optimizer steps done.

    Returns:
        At least 1 before the last step, 0 at or past it.
    """
    end = min(rule.max_steps, rule.steps) if isinstance(rule, StopAtSteps) else rule.max_steps
    return max(0, min(evaluation_interval - step % evaluation_interval, end - step))


def _goal(rule: StopRule, state: StopState) -> Stop | None:
    match rule:
        case StopAtSteps() if state.step >= rule.steps:
            return Stop(StopReason.STEPS, f"trained {state.step:,} steps")
        case StopAtTargetLoss() if (
            state.evaluation_loss is not None and state.evaluation_loss <= rule.target_loss
        ):
            return Stop(
                StopReason.TARGET_LOSS,
                f"evaluation loss {state.evaluation_loss:.6g} at step {state.step:,} is at or under "
                f"target_loss = {rule.target_loss:g}",
            )
        case StopAtSeconds() if state.training_s >= rule.seconds:
            return Stop(StopReason.SECONDS, f"trained {state.training_s:.3f} s of seconds = {rule.seconds:g}")
        case StopAtJoules() if state.energy_mj is None and state.step > 0:
            # Going on would train to the hard limits without ever seeing the goal.
            return Stop(
                StopReason.ENERGY_UNKNOWN,
                f"joules = {rule.joules:g} can't be watched, since the energy of the training windows is "
                "unknown; stop by steps, seconds or target loss on these devices",
            )
        case StopAtJoules() if state.energy_mj is not None and state.energy_mj >= 1_000 * rule.joules:
            return Stop(
                StopReason.JOULES,
                f"used {state.energy_mj / 1_000:.3f} J of joules = {rule.joules:g}",
            )
        case _:
            return None


def _limit(rule: StopRule, state: StopState) -> Stop | None:
    if state.step >= rule.max_steps:
        return Stop(
            StopReason.MAX_STEPS, f"stopped at max_steps = {rule.max_steps:,} before its goal; raise it"
        )
    if state.training_s >= rule.max_seconds:
        return Stop(
            StopReason.MAX_SECONDS,
            f"stopped after {state.training_s:.1f} s by max_seconds = {rule.max_seconds:g}, before its goal; "
            "raise it",
        )
    return None
