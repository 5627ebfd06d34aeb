"""How many rounds are enough: the sequential rule, what it waits for, and that its intervals still hold."""

import math
from typing import Any

import numpy as np
import pytest

from phantom_core.intervals import SEQUENTIAL_LEVEL, RatioInterval, ratio_intervals
from phantom_core.precision import (
    Enough,
    enough_rounds,
    half_width,
    rounds_for_precision,
    rounds_used_up,
)
from phantom_core.spec import MeasurementSpec

AUTO = MeasurementSpec(rounds="auto", precision=0.02, min_rounds=5, max_rounds=40)


def figures(ratios: list[float], arm: str = "phantom") -> dict[str, dict[int, float]]:
    """Energies of an arm and a baseline that wanders by 10 % from round to round."""
    baseline = {number: 1_000.0 * (1 + 0.1 * (number % 3)) for number in range(len(ratios))}
    return {
        "tensor": baseline,
        arm: {number: baseline[number] * ratio for number, ratio in enumerate(ratios)},
    }


def enough(ratios: list[float], measurement: MeasurementSpec = AUTO) -> Enough | None:
    return enough_rounds(measurement, len(ratios), figures(ratios), "tensor")


def test_rounds_go_on_until_the_ratio_is_known_well_enough() -> None:
    narrow, wide = [0.700, 0.702, 0.698, 0.701, 0.699], [0.70, 0.80, 0.60, 0.75, 0.65]
    stop = enough(narrow)
    assert stop is not None
    assert stop.is_precise
    assert stop.message.startswith("'phantom' is known to ± 0.")
    assert "2 % was asked for" in stop.message
    assert enough(wide) is None


def test_four_rounds_are_never_enough_however_equal_they_are() -> None:
    assert enough([0.7] * 4) is None
    assert enough([0.7] * 5) is not None
    assert enough([0.7] * 6, AUTO.model_copy(update={"min_rounds": 7})) is None


def test_a_number_of_rounds_is_kept_to() -> None:
    assert enough([0.7] * 9, MeasurementSpec(rounds=9)) is None


def test_the_least_precise_arm_is_waited_for() -> None:
    both = figures([0.7] * 5) | {"control": figures([0.9, 1.1, 1.0, 0.8, 1.2], "control")["control"]}
    assert enough_rounds(AUTO, 5, both, "tensor") is None


def test_an_arm_that_never_gave_a_pair_is_not_waited_for_but_one_that_did_is() -> None:
    never = figures([0.7] * 5) | {"broken": {}}
    stop = enough_rounds(AUTO, 5, never, "tensor")
    assert stop is not None
    assert stop.is_precise
    now_and_then = figures([0.7] * 5) | {"flaky": {0: 700.0, 3: 700.0}}
    assert enough_rounds(AUTO, 5, now_and_then, "tensor") is None


@pytest.mark.parametrize("nothing", [{"tensor": {}, "phantom": {0: 1.0}}, {"tensor": {0: 1.0}}, {}])
def test_where_nothing_can_be_compared_more_rounds_are_not_made(
    nothing: dict[str, dict[int, float]],
) -> None:
    assert enough_rounds(AUTO, 4, nothing, "tensor") is None
    stop = enough_rounds(AUTO, 5, nothing, "tensor")
    assert stop is not None
    assert not stop.is_precise
    assert stop.message == "no arm could be compared with 'tensor' in 5 rounds"


def test_rounds_that_are_used_up_say_how_precise_they_got_and_how_many_would_do() -> None:
    wide = [0.70, 0.80, 0.60, 0.75, 0.65, 0.72]
    auto = AUTO.model_copy(update={"max_rounds": 6})
    said = rounds_used_up(auto, figures(wide), "tensor")
    expected = rounds_for_precision([math.log(ratio) for ratio in wide], 0.02, SEQUENTIAL_LEVEL)
    assert said is not None
    assert said.startswith("max_rounds = 6 rounds were made, and 'phantom' is known to ± 1")
    assert said.endswith(f"± 2 % was asked for, which can be expected of {expected} rounds")
    few = {arm: {n: mj for n, mj in values.items() if n < 3} for arm, values in figures(wide).items()}
    assert rounds_used_up(auto, few, "tensor") == (
        "max_rounds = 6 rounds were made, of which 3 could be paired for 'phantom'; 5 are needed"
    )


def test_intervals_are_made_once_per_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(*args: Any) -> list[RatioInterval]:
        made.append(args)
        return ratio_intervals(*args)

    monkeypatch.setattr("phantom_core.precision.ratio_intervals", counted)
    auto, wide = AUTO.model_copy(update={"max_rounds": 5}), figures([0.70, 0.80, 0.60, 0.75, 0.65])
    assert enough_rounds(auto, 5, wide, "tensor") is None
    assert len(made) == 1
    assert rounds_used_up(auto, wide, "tensor") is not None
    assert len(made) == 2


def test_rounds_that_suffice_or_are_a_number_leave_nothing_to_say() -> None:
    assert rounds_used_up(AUTO, figures([0.7] * 6), "tensor") is None
    assert rounds_used_up(AUTO, {"tensor": {}, "phantom": {}}, "tensor") is None
    assert rounds_used_up(MeasurementSpec(rounds=6), figures([0.7, 0.9] * 3), "tensor") is None


def test_half_width_is_that_of_the_farther_end() -> None:
    assert half_width(RatioInterval(0.5, 0.4, 0.55)) == pytest.approx(0.25)
    assert half_width(RatioInterval(0.5, 0.5, 0.5)) == 0


def test_rounds_for_a_precision_follow_student() -> None:
    spread = [math.log(1 + 0.02 * sign) for sign in (1, -1, 1, -1, 1, -1)]
    needed = rounds_for_precision(spread, 0.01)
    assert needed is not None
    # s = 2.19 %; t(21) = 2.08 makes it 0.97 % after 22 rounds, one fewer 0.997 %, and ln(1.01) is 0.995 %.
    assert needed == 22
    assert rounds_for_precision(spread, 0.10) == 3
    assert rounds_for_precision([0.1] * 4, 1e-6) == 3
    assert rounds_for_precision([0.1, 0.2], 0.01) is None
    many = rounds_for_precision([-300.0, 300.0, 0.0], 1e-4)
    assert many is not None
    assert many > 10**13


@pytest.mark.parametrize("precision", [0, -0.1, math.nan])
def test_a_precision_that_is_none_is_refused(precision: float) -> None:
    with pytest.raises(ValueError, match="must be a positive share"):
        rounds_for_precision([0.1, 0.2, 0.3], precision)


@pytest.mark.parametrize("spread", [0.005, 0.015, 0.035])
def test_intervals_that_decided_when_to_stop_hold_95_times_in_a_hundred(spread: float) -> None:
    """Student's interval alone, so that thousands of experiments can be simulated; the real one is no narrower."""
    from scipy import stats

    experiments, most = 4_000, 60
    log_ratios = np.random.default_rng(7).normal(scale=spread, size=(experiments, most))
    rounds = np.arange(1, most + 1)
    means = np.cumsum(log_ratios, 1) / rounds
    squares = np.cumsum(log_ratios**2, 1) - rounds * means**2
    variances = np.maximum(0, squares[:, 1:]) / (rounds[1:] - 1)
    coverage = {}
    for level in (0.95, SEQUENTIAL_LEVEL):
        half = stats.t.ppf(0.5 + level / 2, rounds[1:] - 1) * np.sqrt(variances / rounds[1:])
        precise = (half <= math.log1p(AUTO.precision)) & (rounds[1:] >= AUTO.min_rounds)
        stops = np.where(precise.any(1), precise.argmax(1), most - 2)
        index = np.arange(experiments)
        coverage[level] = float(np.mean(np.abs(means[index, stops + 1]) <= half[index, stops]))
    # Four thousand trials of a 95 % event scatter by 0.35 per cent; two and a half times that is allowed for.
    assert coverage[SEQUENTIAL_LEVEL] >= 0.941
    assert coverage[SEQUENTIAL_LEVEL] > coverage[0.95]


def test_the_rule_itself_keeps_its_promise() -> None:
    """The same with the function that jobs call, for as many experiments as time allows."""
    random, spread, held, made = np.random.default_rng(11), 0.025, 0, 120
    for _ in range(made):
        ratios = np.exp(random.normal(math.log(0.7), spread, size=AUTO.max_rounds)).tolist()
        for rounds in range(5, AUTO.max_rounds + 1):
            stop = enough(ratios[:rounds])
            if stop is not None:
                break
        (interval,) = ratio_intervals(
            [[math.log(ratio) for ratio in ratios[:rounds]]], AUTO.seed, SEQUENTIAL_LEVEL
        )
        held += interval.low <= 0.7 <= interval.high
        assert stop is None or half_width(interval) <= AUTO.precision
    assert held / made >= 0.90
