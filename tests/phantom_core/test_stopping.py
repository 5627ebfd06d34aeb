import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantom_core.spec import StopAtJoules, StopAtSeconds, StopAtSteps, StopAtTargetLoss, StopRule
from phantom_core.stopping import StopReason, StopState, decide, next_interval

RULES: list[StopRule] = [
    StopAtSteps(steps=100),
    StopAtTargetLoss(target_loss=0.5),
    StopAtSeconds(seconds=10),
    StopAtJoules(joules=50),
]


def state(**changes: Any) -> StopState:
    return StopState(
        **{"step": 10, "training_s": 1.0, "energy_mj": 1_000.0, "evaluation_loss": 0.9} | changes
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
def test_a_run_goes_on_before_its_goal_and_limits(rule: StopRule) -> None:
    assert decide(rule, state()) is None


@pytest.mark.parametrize(
    ("rule", "changes", "reason"),
    [
        (RULES[0], {"step": 100}, StopReason.STEPS),
        (RULES[1], {"evaluation_loss": 0.5}, StopReason.TARGET_LOSS),
        (RULES[2], {"training_s": 10.0}, StopReason.SECONDS),
        (RULES[3], {"energy_mj": 50_000.0}, StopReason.JOULES),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_a_goal_is_met_exactly_at_its_value(
    rule: StopRule, changes: dict[str, float], reason: StopReason
) -> None:
    stop = decide(rule, state(**changes))
    assert stop is not None
    assert stop.reason is reason
    assert stop.reached
    assert not stop.diverged


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", ["evaluation_loss", "train_loss"])
def test_a_non_finite_loss_is_divergence_whatever_the_rule(rule: StopRule, loss: float, field: str) -> None:
    stop = decide(rule, state(step=100, training_s=10.0, **{field: loss}))
    assert stop is not None
    assert stop.diverged


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
def test_hard_limits_end_every_run(rule: StopRule) -> None:
    limited = rule.model_copy(update={"max_steps": 10, "max_seconds": 100.0})
    stop = decide(limited, state())
    assert stop is not None
    assert stop.reason is StopReason.MAX_STEPS
    limited = rule.model_copy(update={"max_seconds": 1.0})
    stop = decide(limited, state())
    assert stop is not None
    assert stop.reason is StopReason.MAX_SECONDS
    assert not stop.reached


def test_a_goal_met_on_the_last_step_allowed_counts_as_met() -> None:
    stop = decide(StopAtTargetLoss(target_loss=0.5, max_steps=10), state(evaluation_loss=0.4))
    assert stop is not None
    assert stop.reason is StopReason.TARGET_LOSS


def test_a_target_loss_is_not_met_without_an_evaluation() -> None:
    assert decide(RULES[1], state(evaluation_loss=None)) is None


def test_joules_that_nobody_can_read_end_the_run_with_that_reason_but_not_before_its_first_step() -> None:
    stop = decide(RULES[3], state(energy_mj=None))
    assert stop is not None
    assert stop.reason is StopReason.ENERGY_UNKNOWN
    assert decide(RULES[3], state(energy_mj=None, step=0)) is None


@given(
    steps=st.integers(1, 5_000),
    max_steps=st.integers(1, 5_000),
    interval=st.integers(1, 6_000),
)
def test_intervals_end_on_evaluations_and_exactly_on_the_last_step(
    steps: int, max_steps: int, interval: int
) -> None:
    rule = StopAtSteps(steps=steps, max_steps=max_steps)
    step = 0
    while (more := next_interval(rule, interval, step)) > 0:
        step += more
        assert step % interval == 0 or step == min(steps, max_steps)
    assert step == min(steps, max_steps)
    assert decide(rule, state(step=step)) is not None


def test_an_interval_that_was_cut_short_is_made_up_so_that_evaluations_stay_on_multiples() -> None:
    assert next_interval(StopAtSeconds(seconds=1), 100, 130) == 70
