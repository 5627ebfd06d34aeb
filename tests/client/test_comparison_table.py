import io
from typing import Any

import pytest
from rich.console import Console

from client.comparison_table import (
    ESTIMATE_LABEL,
    ComparisonTable,
    answer_sentences,
    interval,
    is_comparable,
    verdict,
)
from client.consoles import PIPE_WIDTH
from client.figures import number, quantity
from client.models import ArmComparison, Comparison, MetricComparison, Verdict


def metric(name: str = "energy_to_target_mj", says: Verdict = "saves", **changes: Any) -> MetricComparison:
    values: dict[str, Any] = {
        "metric": name,
        "is_primary": True,
        "verdict": says,
        "sentence": "saves 38.8 % (95 % interval 35.0 to 42.0 %, 5 rounds)",
        "ratio": 0.612,
        "ratio_low": 0.58,
        "ratio_high": 0.65,
        "pairs": 5,
        "arm_mean": 6_120.0,
        "baseline_mean": 10_000.0,
        "reason": None,
        "flags": ("short_window",),
        "blocking_flags": (),
        **changes,
    }
    return MetricComparison.model_validate(values)


def comparison(
    *arms: tuple[str, MetricComparison], estimated: bool = False, final: bool = True
) -> Comparison:
    return Comparison(
        experiment_id="exp-1",
        experiment_state="succeeded" if final else "running",
        baseline="tensor",
        primary_metric="energy_to_target_mj",
        rounds_planned=5,
        method="estimate" if estimated else "nvml.counter",
        scope="process" if estimated else "gpu",
        estimated=estimated,
        final=final,
        arms=tuple(
            ArmComparison(
                arm=name,
                strategy="phantom",
                control_of=("phantom",) if "control" in name else (),
                primary=primary,
                metrics=(
                    primary,
                    metric("seconds_per_step", arm_mean=0.0021, baseline_mean=0.0034, is_primary=False),
                ),
                parameters_ratio=0.5,
            )
            for name, primary in arms
        ),
    )


def printed(found: Comparison, width: int = PIPE_WIDTH) -> str:
    text = io.StringIO()
    Console(file=text, width=width).print(ComparisonTable(found))
    return text.getvalue()


def line_with(word: str, found: Comparison) -> str:
    return next(line for line in printed(found).splitlines() if word in line)


def test_a_ratio_never_stands_without_its_interval_and_verdict() -> None:
    line = line_with("phantom", comparison(("phantom", metric())))
    for part in ("0.612 [0.580, 0.650]", "saves 38.8 %", "5/5", "6.12", "0.00210"):
        assert part in line


def test_the_baseline_stands_in_the_table_with_its_own_figures() -> None:
    line = next(
        line for line in printed(comparison(("phantom", metric()))).splitlines() if "baseline" in line
    )
    assert "tensor" in line
    assert "10.0" in line


def test_a_baseline_of_other_rounds_stands_beside_the_arm_that_was_paired_in_them() -> None:
    first, second = metric(arm_mean=90.0, baseline_mean=100.0), metric(arm_mean=126.0, baseline_mean=140.0)
    text = printed(comparison(("first", first), ("second", second)))
    assert "by arm" in next(line for line in text.splitlines() if "baseline)" in line)
    assert "the baseline's in the same rounds" in text
    for name, figures in (
        ("first", ("0.0900 : 0.100", "90.0 : 100")),
        ("second", ("0.126 : 0.140", "126 : 140")),
    ):
        line = next(line for line in text.splitlines() if line.strip().startswith(name))
        assert any(each in line for each in figures), line


def test_an_estimate_is_labelled_in_the_table() -> None:
    found = comparison(("phantom", metric()), estimated=True)
    assert ESTIMATE_LABEL in printed(found)
    measured = comparison(("phantom", metric()))
    assert ESTIMATE_LABEL not in printed(measured)
    assert "nvml.counter" in printed(measured)


def test_what_is_not_comparable_says_why_and_shows_no_ratio() -> None:
    blocked = metric(
        says="not_comparable", ratio=None, ratio_low=None, ratio_high=None, reason="no round is complete",
        blocking_flags=("short_window_refused",), arm_mean=None, baseline_mean=None,
    )  # fmt: skip
    text = printed(comparison(("phantom", blocked)))
    assert "phantom: no round is complete" in text
    assert "short_window_refused!" in text
    assert interval(blocked) == "-"
    assert not is_comparable(comparison(("phantom", blocked)))


def test_rounds_to_expect_stand_in_one_line() -> None:
    found = comparison(
        ("phantom", metric(rounds_for_precision=12)),
        ("gather", metric(rounds_for_precision=4)),
        ("low-rank", metric()),
    )
    text = printed(found.model_copy(update={"precision": 0.02}))
    assert "rounds to expect for ± 2 %: phantom 12, gather 4\n" in text
    assert "rounds to expect" not in printed(found)
    assert "rounds to expect" not in printed(
        comparison(("low-rank", metric())).model_copy(update={"precision": 0.02})
    )


def test_a_running_experiments_answer_is_said_to_be_unfinished() -> None:
    assert "may still change" in printed(comparison(("phantom", metric()), final=False))
    assert "may still change" not in printed(comparison(("phantom", metric())))


def test_controls_are_marked_and_get_no_sentence() -> None:
    found = comparison(("phantom", metric()), ("block control", metric(sentence="control says")))
    assert "block control (control)" in printed(found)
    [sentence] = answer_sentences(found)
    assert sentence.startswith("phantom against tensor, energy to the target loss: saves 38.8 %")


def test_flags_stand_below_the_table_once_if_all_arms_share_them() -> None:
    assert "phantom: flagged short_window" in printed(comparison(("phantom", metric())))
    both = printed(comparison(("phantom", metric()), ("gather", metric())))
    assert both.count("flagged") == 1
    assert "every arm: flagged short_window" in both
    differ = printed(comparison(("phantom", metric()), ("gather", metric(flags=("throttled",)))))
    assert "gather: flagged throttled" in differ
    assert "flagged" not in printed(comparison(("phantom", metric(flags=()))))


def test_on_a_narrow_terminal_nothing_is_cut() -> None:
    text = printed(comparison(("tensor n=384 weights-matched control", metric())), width=80)
    assert "0.612 [0.580, 0.650]" in text
    assert "saves 38.8 %" in text
    assert "…" not in text
    assert "6.12" in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80


def test_names_are_text_not_markup() -> None:
    assert "[red]x[/red]" in printed(comparison(("[red]x[/red]", metric())))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (1234567.8, "1,234,568"),
        (12.345, "12.3"),
        (0.001234, "0.00123"),
        (1e-9, "0.00000000100"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (-5.678, "-5.68"),
    ],
)
def test_numbers_have_three_digits_that_mean_something(value: float | None, text: str) -> None:
    assert number(value) == text


def test_millijoules_are_shown_as_joules() -> None:
    assert quantity("energy_per_step_mj", 1_500.0) == "1.50"
    assert quantity("seconds_per_step", 1.5) == "1.50"


def test_verdicts_say_their_size() -> None:
    assert verdict(metric()) == "saves 38.8 %"
    assert verdict(metric(says="costs_more", ratio=1.25)) == "costs 25.0 % more"
    assert verdict(metric(says="no_difference_shown")) == "no difference shown"
