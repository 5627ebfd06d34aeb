"""The sentence of a verdict: its figure, its interval, its number of rounds, and whether it was measured."""

import pytest

from phantom_core.intervals import RatioInterval
from services.metrics import METRICS
from services.verdicts import Finding, sentence
from services.views import Verdict

BY_NAME = {metric.name: metric for metric in METRICS}


@pytest.mark.parametrize(
    ("metric", "verdict", "interval", "said"),
    [
        (
            "energy_per_step_mj",
            "saves",
            (0.69, 0.66, 0.72),
            "saves 31 % (95 % interval 28 to 34 %, 5 rounds)",
        ),
        (
            "energy_per_step_mj",
            "saves",
            (0.69, 0.685, 0.694),
            "saves 31.0 % (95 % interval 30.6 to 31.5 %, 5 rounds)",
        ),
        (
            "energy_to_target_mj",
            "costs_more",
            (1.12, 1.08, 1.15),
            "costs 12 % more (95 % interval 8 to 15 %, 5 rounds)",
        ),
        (
            "energy_to_target_mj",
            "costs_more",
            (2.4, 2.1, 2.7),
            "costs 2.4 times as much (95 % interval 2.1 to 2.7 times, 5 rounds)",
        ),
        (
            "energy_to_target_mj",
            "costs_more",
            (2.49, 1.45, 4.30),
            "costs 2.5 times as much (95 % interval 1.4 to 4.3 times, 5 rounds)",
        ),
        (
            "energy_per_step_mj",
            "saves",
            (0.985, 0.974, 0.996),
            "saves 1.5 % (95 % interval 0.4 to 2.6 %, 5 rounds)",
        ),
        (
            "energy_training_mj",
            "no_difference_shown",
            (1.02, 0.97, 1.07),
            "no difference shown (+2 %, 95 % interval -3 to +7 %, 5 rounds)",
        ),
        (
            "seconds_per_step",
            "saves",
            (0.5, 0.45, 0.55),
            "takes 50 % less (95 % interval 45 to 55 %, 5 rounds)",
        ),
        (
            "final_evaluation_loss",
            "costs_more",
            (1.1, 1.05, 1.15),
            "ends 10 % higher (95 % interval 5 to 15 %, 5 rounds)",
        ),
    ],
)
def test_a_verdict_is_said_with_its_interval(
    metric: str, verdict: Verdict, interval: tuple[float, float, float], said: str
) -> None:
    finding = Finding(BY_NAME[metric], verdict, RatioInterval(*interval), 5, None, estimated=False)
    assert sentence(finding) == said


def test_an_estimate_is_called_one_where_energy_is_said() -> None:
    interval = RatioInterval(0.69, 0.66, 0.72)
    energy = Finding(BY_NAME["energy_per_step_mj"], "saves", interval, 3, None, estimated=True)
    assert sentence(energy) == ("saves 31 % (95 % interval 28 to 34 %, 3 rounds; estimated, not measured)")
    time = Finding(BY_NAME["seconds_per_step"], "saves", interval, 3, None, estimated=True)
    assert "estimated" not in sentence(time)


def test_without_an_interval_there_is_only_the_reason() -> None:
    finding = Finding(BY_NAME["energy_per_step_mj"], "not_comparable", None, 2, "why", estimated=False)
    assert sentence(finding) == "not comparable: why"
