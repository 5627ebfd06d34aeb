"""Pairs by round: what cancels, what is left out and why, which flags stand beside a verdict or in its way."""

import math
import random
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import pytest

from phantom_core.intervals import LEVEL, RatioInterval
from phantom_core.precision import rounds_for_precision
from services import pairing
from services.arm_runs import ArmRuns
from services.metrics import primary_metric
from services.pairing import Asked, compare_arm
from services.tables import Arm, Device, Run
from services.views import ArmComparison, MetricComparison

Values = Callable[[str, int], Mapping[str, Any]]


def compared(
    values: Values,
    *,
    rounds: int = 5,
    stop: str = "steps",
    dtypes: tuple[str, str] = ("float32", "float32"),
    evaluation_interval: int = 1,
) -> ArmComparison:
    """`phantom` against `tensor`, whose runs have these values by arm and round, and sound ones beside."""
    arms = [
        Arm(key=key, name=name, strategy=name, control_of=[], dtype=dtype, cost={"parameters": parameters})
        for key, name, dtype, parameters in zip(
            (1, 2), ("tensor", "phantom"), dtypes, (400, 100), strict=True
        )
    ]
    devices = {
        key: Device(
            key=key,
            host="h",
            uuid=f"GPU-{key}",
            name=name,
            power_limit_mw=power,
            clock_limit_mhz=clock,
            memory_clock_limit_mhz=memory,
        )
        for key, name, power, clock, memory in (
            (1, "H100", 700.0, 1980.0, 2619.0),
            (2, "H100", 700.0, 1980.0, 2619.0),
            (3, "A100", 700.0, 1980.0, 2619.0),
            (4, "H100", 300.0, 1980.0, 2619.0),
            (5, "H100", 700.0, 1410.0, 2619.0),
            (6, "H100", 700.0, 1980.0, 1593.0),
            (7, "H100", 700.0, None, None),
            (8, "H100", 700.0, None, None),
        )
    }
    runs = [
        Run(**(dict(SOUND) | {"arm_key": arm.key, "round": number} | dict(values(arm.name, number))))
        for arm in arms
        for number in range(rounds)
    ]
    tensor, phantom = (ArmRuns.of(arm, runs, devices) for arm in arms)
    asked = Asked(primary_metric(stop), rounds, 1, 0.02, 0.05, evaluation_interval, LEVEL)
    return compare_arm(phantom, tensor, asked)


SOUND: Mapping[str, Any] = {
    "state": "succeeded",
    "method": "nvml.counter",
    "scope": "gpu",
    "device_keys": [1, 2],
    "flags": [],
    "training_s": 20.0,
    "energy_per_step_mj": 40.0,
    "energy_per_sample_mj": 0.2,
    "energy_training_mj": 4_000.0,
    "seconds_per_step": 0.2,
    "final_evaluation_loss": 0.5,
}


def metric(arm: ArmComparison, name: str) -> MetricComparison:
    """One metric of a comparison."""
    return next(each for each in arm.metrics if each.metric == name)


def energies(ratio: float) -> Values:
    """Energy per step that wanders from round to round by 40 %, alike for both arms, and 1 % apart."""

    def value(arm: str, number: int) -> Mapping[str, Any]:
        shared = 1_000.0 * (1 + 0.1 * number)
        own = 1 + 0.01 * ((number * 7) % 5 - 2)
        return {"energy_per_step_mj": shared * ratio * own if arm == "phantom" else shared}

    return value


def saving(**changes: object) -> Values:
    """A saving of 30 %, with something the same in all runs."""
    return lambda arm, number: {**energies(0.7)(arm, number), **changes}


def saving_but(when: Callable[[str, int], bool], **changes: object) -> Values:
    """A saving of 30 %, with something else in some runs."""
    return lambda arm, number: {**energies(0.7)(arm, number), **(changes if when(arm, number) else {})}


def test_pairing_by_round_cancels_what_both_arms_share() -> None:
    arm = compared(energies(0.7))
    primary = arm.primary
    assert (primary.metric, primary.verdict, primary.pairs) == ("energy_per_step_mj", "saves", 5)
    assert primary.ratio == pytest.approx(0.7, rel=0.01)
    assert primary.ratio_low is not None
    assert primary.ratio_high is not None
    assert 0.66 < primary.ratio_low < 0.7 < primary.ratio_high < 0.74
    assert primary.sentence.startswith("saves 30 % (95 % interval ")
    assert primary.baseline_mean == pytest.approx(1_190, rel=0.01)
    assert primary.flags == ()
    assert arm.parameters_ratio == 0.25


@pytest.mark.parametrize(("ratio", "verdict"), [(1.0, "no_difference_shown"), (1.2, "costs_more")])
def test_the_verdict_follows_the_interval(ratio: float, verdict: str) -> None:
    assert compared(energies(ratio)).primary.verdict == verdict


def test_two_rounds_make_no_verdict() -> None:
    primary = compared(energies(0.5), rounds=2).primary
    assert (primary.verdict, primary.ratio, primary.pairs) == ("not_comparable", None, 2)
    assert primary.sentence == "not comparable: 2 rounds asked for, 3 are needed"


def test_rounds_that_did_not_end_well_are_left_out_and_counted() -> None:
    early = saving_but(
        lambda arm, number: arm == "phantom" and number < 2, state="diverged", reason="non_finite_loss"
    )
    primary = compared(early).primary
    assert (primary.verdict, primary.pairs) == ("saves", 3)
    assert [each.round for each in primary.excluded] == [0, 1]
    assert primary.excluded[0].reason == "'phantom' is diverged (non_finite_loss)"


def test_too_few_rounds_left_say_why() -> None:
    late = saving_but(lambda arm, number: arm == "tensor" and number > 0, state="failed")
    primary = compared(late).primary
    assert primary.verdict == "not_comparable"
    assert primary.reason == "1 of 5 rounds can be paired, 3 are needed: 'tensor' is failed (4 rounds)"


def test_an_unknown_energy_is_never_a_zero() -> None:
    last = saving_but(
        lambda arm, number: arm == "phantom" and number == 4,
        energy_per_step_mj=None,
        energy_reason="no permission",
    )
    primary = compared(last).primary
    assert primary.pairs == 4
    assert primary.excluded[0].reason == "energy per step of 'phantom' is unknown: no permission"


def test_a_zero_has_no_ratio() -> None:
    primary = compared(saving_but(lambda arm, _: arm == "phantom", energy_per_step_mj=0.0)).primary
    assert primary.verdict == "not_comparable"
    assert primary.excluded[0].reason == "energy per step of 'phantom' is 0, which has no ratio"


def test_a_target_makes_energy_to_it_the_answer() -> None:
    def values(arm: str, _number: int) -> Mapping[str, Any]:
        mj, seconds = (60.0, 5.0) if arm == "phantom" else (100.0, 8.0)
        return {"target_step": 50, "energy_to_target_mj": mj, "seconds_to_target": seconds}

    arm = compared(values, stop="target_loss")
    assert (arm.primary.metric, arm.primary.verdict) == ("energy_to_target_mj", "saves")
    assert arm.primary.ratio == pytest.approx(0.6)
    assert metric(arm, "seconds_to_target").ratio == pytest.approx(0.625)
    # Judged by the seconds to the target, not by those of all training.
    assert arm.primary.flags == ("short_window",)
    assert metric(arm, "energy_training_mj").flags == ()


def test_a_target_that_one_arm_misses_is_no_saving() -> None:
    def values(arm: str, _number: int) -> Mapping[str, Any]:
        reached = {"target_step": 50, "energy_to_target_mj": 100.0, "seconds_to_target": 80.0}
        return {} if arm == "phantom" else reached

    primary = compared(values, stop="target_loss").primary
    assert primary.verdict == "not_comparable"
    assert primary.reason is not None
    assert "'phantom' did not reach the target loss (5 rounds)" in primary.reason


def test_metrics_of_a_target_exist_only_with_one() -> None:
    arm = compared(energies(1.0))
    assert {each.metric for each in arm.metrics} == {
        "energy_per_step_mj",
        "energy_per_sample_mj",
        "energy_training_mj",
        "seconds_per_step",
        "final_evaluation_loss",
    }
    assert [each.metric for each in arm.metrics if each.is_primary] == ["energy_per_step_mj"]


def test_different_losses_are_said_beside_energy() -> None:
    def values(arm: str, number: int) -> Mapping[str, Any]:
        loss = (0.6 if arm == "phantom" else 0.5) * (1 + 0.001 * number)
        return {**energies(0.7)(arm, number), "final_evaluation_loss": loss}

    arm = compared(values)
    assert metric(arm, "final_evaluation_loss").sentence.startswith("ends 20")
    assert (arm.primary.verdict, arm.primary.flags) == ("saves", ("loss_differs",))
    assert metric(arm, "final_evaluation_loss").flags == ()


def test_losses_that_no_interval_parts_are_not_taken_for_equal() -> None:
    """Higher in every round, by so much more in some that the interval has 1 in it."""

    def values(arm: str, number: int) -> Mapping[str, Any]:
        loss = (1.3, 2.0, 2.8)[number] if arm == "phantom" else 1.0
        return {**energies(0.6)(arm, number), "final_evaluation_loss": loss}

    arm = compared(values, rounds=3)
    assert metric(arm, "final_evaluation_loss").verdict == "no_difference_shown"
    assert arm.primary.flags == ("loss_differs",)


def test_with_a_target_losses_differ_for_all_that_was_not_measured_at_it() -> None:
    def values(arm: str, _number: int) -> Mapping[str, Any]:
        reached = {"target_step": 500, "energy_to_target_mj": 50.0, "seconds_to_target": 80.0}
        return {**reached, "final_evaluation_loss": 2.0 if arm == "phantom" else 0.5}

    arm = compared(values, stop="target_loss")
    flagged = {each.metric for each in arm.metrics if "loss_differs" in each.flags}
    assert flagged == {
        "energy_per_step_mj",
        "energy_per_sample_mj",
        "energy_training_mj",
        "seconds_per_step",
    }


def test_steps_of_different_batch_sizes_are_compared_by_row_alone() -> None:
    """Half as many rows a step at 52 % of the joules cost 4 % more, not half."""

    def values(arm: str, _number: int) -> Mapping[str, Any]:
        rows, joules = (128, 52.0) if arm == "phantom" else (256, 100.0)
        return {
            "steps": 100,
            "samples": 100 * rows,
            "energy_per_step_mj": joules,
            "energy_per_sample_mj": joules / rows,
            "seconds_per_step": joules,
        }

    arm = compared(values)
    for name in ("energy_per_step_mj", "seconds_per_step"):
        assert (metric(arm, name).verdict, metric(arm, name).blocking_flags) == (
            "not_comparable",
            ("batch_differs",),
        )
        assert "compare per row" in (metric(arm, name).reason or "")
    assert metric(arm, "energy_per_sample_mj").ratio == pytest.approx(1.04)


@pytest.mark.parametrize(("evaluation_interval", "is_coarse"), [(500, True), (51, True), (50, False)])
def test_a_target_that_is_looked_for_rarely_is_said_to_be_coarse(
    evaluation_interval: int, is_coarse: bool
) -> None:
    """Both arms crossed it near step 1,000, one just before an evaluation and one just after."""

    def values(arm: str, number: int) -> Mapping[str, Any]:
        steps = 1_500 if arm == "phantom" else 1_000
        joules = steps * (0.92 + 0.001 * number)
        return {"target_step": steps, "energy_to_target_mj": joules, "seconds_to_target": 20.0}

    arm = compared(values, stop="target_loss", evaluation_interval=evaluation_interval)
    for name in ("energy_to_target_mj", "seconds_to_target"):
        assert ("target_coarse" in metric(arm, name).flags) == is_coarse
    assert "target_coarse" not in metric(arm, "energy_per_step_mj").flags


@pytest.mark.parametrize(("uncertainty_mj", "flags"), [(0.02, ()), (1.0, ("imprecise",))])
@pytest.mark.parametrize("ratio", [0.99, 1.01])
def test_a_difference_within_what_the_readings_may_be_off_by_is_imprecise(
    uncertainty_mj: float, flags: tuple[str, ...], ratio: float
) -> None:
    """Their errors are alike in every round, so that no interval has them in it."""

    def values(arm: str, number: int) -> Mapping[str, Any]:
        joules = 40.0 * (ratio + 0.0001 * ((number * 7) % 5) if arm == "phantom" else 1.0)
        return {"energy_per_step_mj": joules, "energy_per_step_uncertainty_mj": uncertainty_mj}

    arm = compared(values)
    assert arm.primary.verdict == ("saves" if ratio < 1 else "costs_more")
    assert arm.primary.flags == flags


def test_rounds_to_expect_count_those_that_give_no_pair() -> None:
    def failing(arm: str, number: int) -> Mapping[str, Any]:
        is_lost = arm == "phantom" and number % 2 == 1
        return {
            **energies(0.7)(arm, number),
            **({"state": "failed", "reason": "arm_error"} if is_lost else {}),
        }

    half = compared(failing, rounds=10).primary
    assert half.pairs == 5
    paired = [math.log(0.7 * (1 + 0.01 * ((number * 7) % 5 - 2))) for number in range(0, 10, 2)]
    needed = rounds_for_precision(paired, 0.02)
    assert needed is not None
    assert half.rounds_for_precision == 2 * needed


def test_what_concerns_the_time_of_a_run_stands_beside_it() -> None:
    arm = compared(saving(flags=["company_unknown", "resumed", "sampler_lost"]))
    assert metric(arm, "seconds_per_step").flags == ("company_unknown", "resumed")


def test_a_loss_that_is_not_a_number_is_left_out_of_losses_only() -> None:
    strange = saving_but(
        lambda arm, number: arm == "phantom" and number == 0,
        final_evaluation_loss=None,
        non_finite={"final_evaluation_loss": "nan"},
    )
    arm = compared(strange)
    assert arm.primary.pairs == 5
    loss = metric(arm, "final_evaluation_loss")
    assert loss.pairs == 4
    assert loss.excluded[0].reason == "final evaluation loss of 'phantom' is nan"


@pytest.mark.parametrize("flag", ["counter_reset", "board_shared", "mig_parent"])
def test_a_blocking_flag_leaves_its_round_out(flag: str) -> None:
    primary = compared(saving_but(lambda arm, number: arm == "tensor" and number == 1, flags=[flag])).primary
    assert (primary.pairs, primary.verdict) == (4, "saves")
    assert primary.blocking_flags == (flag,)
    assert primary.excluded[0].reason.startswith(f"{flag}: ")


def test_a_blocking_flag_in_every_round_forbids_a_verdict() -> None:
    arm = compared(saving(flags=["counter_reset"]))
    assert (arm.primary.verdict, arm.primary.blocking_flags) == ("not_comparable", ("counter_reset",))
    # What resets an energy counter says nothing about time.
    assert metric(arm, "seconds_per_step").verdict == "no_difference_shown"


@pytest.mark.parametrize("flag", ["throttled", "estimated", "methods_disagree", "flag_of_a_newer_job"])
def test_other_flags_are_said_beside_the_verdict(flag: str) -> None:
    primary = compared(saving(flags=[flag])).primary
    assert (primary.verdict, primary.flags) == ("saves", (flag,))


def test_flags_of_rounds_that_are_left_out_are_not_said() -> None:
    values = saving_but(lambda _, number: number == 0, flags=["throttled"], state="failed")
    assert compared(values).primary.flags == ()


def test_an_estimate_is_called_one_in_the_sentence() -> None:
    assert "estimated, not measured" in compared(saving(flags=["estimated"])).primary.sentence


@pytest.mark.parametrize(
    ("seconds", "verdict", "flags", "blocking"),
    [
        (0.5, "not_comparable", (), ("short_window_refused",)),
        (5.0, "saves", ("short_window",), ()),
        (50.0, "saves", (), ()),
    ],
)
def test_windows_must_be_long_enough(
    seconds: float, verdict: str, flags: tuple[str, ...], blocking: tuple[str, ...]
) -> None:
    primary = compared(saving(training_s=seconds)).primary
    assert (primary.verdict, primary.flags, primary.blocking_flags) == (verdict, flags, blocking)


def test_a_steady_window_carries_energy_per_step_where_training_is_too_short() -> None:
    arm = compared(saving(training_s=0.5, steady_s=20.0, flags=["short_window_refused"]))
    assert (arm.primary.verdict, arm.primary.flags) == ("saves", ())
    assert metric(arm, "energy_training_mj").blocking_flags == ("short_window_refused",)


def test_arms_read_by_different_methods_are_not_compared() -> None:
    arm = compared(saving_but(lambda arm, _: arm == "phantom", method="nvml.power"))
    assert arm.primary.blocking_flags == ("method_changed",)
    assert metric(arm, "seconds_per_step").verdict == "no_difference_shown"


def test_arms_of_different_number_formats_are_not_compared() -> None:
    arm = compared(energies(0.7), dtypes=("float32", "bfloat16"))
    assert arm.primary.blocking_flags == ("dtype_differs",)
    assert metric(arm, "final_evaluation_loss").verdict == "no_difference_shown"


@pytest.mark.parametrize(
    ("boards", "blocking"),
    [
        ([1], ()),
        ([2], ()),
        ([1, 3], ("hardware_differs",)),
        ([3], ("hardware_differs",)),
        ([4], ("hardware_differs", "clocks_differ")),
    ],
)
def test_arms_must_share_their_boards(boards: list[int], blocking: tuple[str, ...]) -> None:
    """The baseline runs on boards 1 and 2, of which an arm may use fewer."""
    primary = compared(saving_but(lambda arm, _: arm == "phantom", device_keys=boards)).primary
    assert primary.blocking_flags == blocking
    assert primary.verdict == ("not_comparable" if blocking else "saves")


def test_boards_under_different_power_limits_are_not_compared() -> None:
    def values(arm: str, number: int) -> Mapping[str, Any]:
        return {**energies(0.7)(arm, number), "device_keys": [1, 4] if arm == "tensor" else [1]}

    assert compared(values).primary.blocking_flags == ("clocks_differ",)


@pytest.mark.parametrize(
    ("boards", "blocking"),
    [
        ([1, 2], ()),
        ([1, 5], ("clocks_differ",)),
        ([1, 6], ("clocks_differ",)),
        ([1, 7], ("clocks_differ",)),
        ([7, 8], ()),
        ([7, 1], ("clocks_differ",)),
    ],
)
def test_boards_under_different_limits_on_clocks_are_not_compared(
    boards: list[int], blocking: tuple[str, ...]
) -> None:
    """The baseline runs on both boards, the arm on the first; limits that nobody knows are no difference."""

    def values(arm: str, number: int) -> Mapping[str, Any]:
        return {**energies(0.7)(arm, number), "device_keys": boards if arm == "tensor" else boards[:1]}

    primary = compared(values).primary
    assert primary.blocking_flags == blocking
    assert primary.verdict == ("not_comparable" if blocking else "saves")


def test_a_ratio_that_moves_with_the_rounds_is_flagged() -> None:
    def values(arm: str, number: int) -> Mapping[str, Any]:
        wobble = 1 + 0.001 * ((number * 7) % 5)
        return {"energy_per_step_mj": 1_000.0 * (1 + 0.05 * number * (arm == "phantom")) * wobble}

    assert "drift" in compared(values).primary.flags
    assert "drift" not in compared(energies(0.7)).primary.flags


def noisy(seed: int, drift_per_round: float = 0.0) -> Values:
    """Ratios that scatter by 1 %, and may rise from round to round."""
    scatter = random.Random(seed)
    ratios = [0.7 * math.exp(scatter.gauss(drift_per_round * number, 0.01)) for number in range(8)]
    return lambda arm, number: {"energy_per_step_mj": 1_000.0 * (ratios[number] if arm == "phantom" else 1.0)}


def test_drift_is_told_from_noise_no_more_than_once_in_a_hundred() -> None:
    """Of 400 noisy traces some 4 are flagged by chance; 11 or more would be one in a thousand."""
    flagged = sum("drift" in drift_only(noisy(seed)) for seed in range(400))
    assert flagged <= 10


def test_drift_as_large_as_the_noise_in_each_round_is_told() -> None:
    flagged = sum("drift" in drift_only(noisy(seed, drift_per_round=0.01)) for seed in range(100))
    assert flagged >= 90


def drift_only(values: Values) -> tuple[str, ...]:
    """Flags of the primary metric, without the bootstrap of the others, which takes long."""
    with mock.patch.object(pairing, "_intervals", lambda pairs, _: dict.fromkeys(pairs, ANY_INTERVAL)):
        return compared(values, rounds=8).primary.flags


ANY_INTERVAL = RatioInterval(0.7, 0.69, 0.71)


def test_how_many_rounds_a_wished_precision_needs_is_told() -> None:
    """The ratios of five rounds scatter by 1.6 %: t4 x 1.6 % / sqrt(5) = 2 %, so five rounds just about do."""
    assert compared(energies(0.7)).primary.rounds_for_precision == 5
    assert compared(energies(0.7), rounds=2).primary.rounds_for_precision is None
    assert compared(lambda arm, _: {}).primary.rounds_for_precision == 3


def test_figures_whose_ratio_no_float_can_hold_do_not_end_the_comparison() -> None:
    def values(arm: str, number: int) -> Mapping[str, Any]:
        return {"energy_per_step_mj": 1e-300 if arm == "phantom" else 1e300}

    primary = compared(values).primary
    assert primary.verdict == "saves"
    assert primary.ratio is not None
    assert primary.ratio > 0


@pytest.mark.parametrize("spread", [1e3, 1e150])
def test_an_absurd_spread_shows_no_difference_and_stays_finite(spread: float) -> None:
    def values(arm: str, number: int) -> Mapping[str, Any]:
        return {"energy_per_step_mj": 1.0 if arm == "tensor" else spread ** (number % 2 * 2 - 1)}

    primary = compared(values).primary
    assert primary.verdict == "no_difference_shown"
    assert primary.ratio_high is not None
    assert math.isfinite(primary.ratio_high)
    assert primary.rounds_for_precision is not None
    assert primary.rounds_for_precision > 1_000
