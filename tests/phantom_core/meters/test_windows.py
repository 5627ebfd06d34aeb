import math

import pytest

from phantom_core.flags import Flag
from phantom_core.meters.base import EnergyReading, Instant
from phantom_core.meters.windows import (
    WindowEnergy,
    methods_disagree,
    window_energy,
    window_flags,
)


def instant(monotonic_s: float) -> Instant:
    return Instant(1.8e9 + monotonic_s, monotonic_s)


def reading(monotonic_s: float, energy_mj: float | None) -> EnergyReading:
    """A 100 ms counter on a board of 700 W."""
    return EnergyReading(
        instant(monotonic_s), energy_mj, "nvml.counter", "gpu", uncertainty_mj=70_000.0, lag_s=0.1
    )


def test_a_window_is_end_minus_start_with_the_bound_of_a_full_update_period_at_the_power_limit() -> None:
    energy = window_energy(reading(0, 1_000_000), reading(10, 4_000_000))
    assert energy == WindowEnergy(3_000_000, 70_000, "nvml.counter", "gpu")


def test_power_seen_at_the_edges_narrows_the_bound_but_never_below_the_mean_power() -> None:
    start, end = reading(0, 1_000_000), reading(10, 4_000_000)
    assert window_energy(start, end, [100_000, 400_000]).uncertainty_mj == pytest.approx(40_000)
    assert window_energy(start, end, [100_000, None, math.nan]).uncertainty_mj == pytest.approx(30_000)
    assert window_energy(start, end, [9e9]).uncertainty_mj == pytest.approx(70_000)


def test_without_a_known_limit_the_mean_power_makes_the_bound() -> None:
    start, end = (r._replace(uncertainty_mj=None) for r in (reading(0, 0), reading(10, 3_000_000)))
    assert window_energy(start, end).uncertainty_mj == pytest.approx(30_000)


def test_without_a_known_period_there_is_no_bound() -> None:
    bare = [r._replace(uncertainty_mj=None, lag_s=None) for r in (reading(0, 0), reading(10, 1_000))]
    assert window_energy(bare[0], bare[1]).uncertainty_mj is None


def test_what_integration_has_added_between_the_ends_is_part_of_the_bound() -> None:
    start = reading(0, 0)._replace(accumulated_mj=5.0, uncertainty_mj=0.0, lag_s=0.0)
    end = reading(10, 900)._replace(accumulated_mj=25.0, uncertainty_mj=0.0, lag_s=0.0)
    assert window_energy(start, end).uncertainty_mj == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("start", "end", "flag", "words"),
    [
        (reading(0, 5_000), reading(10, 4_000), Flag.COUNTER_RESET, "went back by 1000 mJ"),
        (
            reading(0, 5_000),
            reading(10, 9_000)._replace(epoch=1),
            Flag.COUNTER_RESET,
            "started over",
        ),
        (
            reading(0, 5_000),
            reading(10, 9_000)._replace(method="nvml.power"),
            Flag.METHOD_CHANGED,
            "nvml.power",
        ),
        (
            reading(0, 5_000),
            reading(10, 9_000)._replace(scope="module"),
            Flag.METHOD_CHANGED,
            "module",
        ),
        (
            reading(0, None)._replace(reason="lost"),
            reading(10, 1),
            Flag.ENERGY_UNKNOWN,
            "start: lost",
        ),
        (
            reading(0, 1),
            reading(10, None)._replace(reason="lost"),
            Flag.ENERGY_UNKNOWN,
            "end: lost",
        ),
        (reading(0, 1), reading(10, math.nan), Flag.ENERGY_UNKNOWN, "end"),
        (reading(0, 1_000), reading(10, 1_000), Flag.ENERGY_UNKNOWN, "did not move"),
        (reading(10, 1_000), reading(0, 2_000), Flag.ENERGY_UNKNOWN, "before its start"),
    ],
)
def test_readings_without_a_sound_difference_give_none_with_flag_and_reason(
    start: EnergyReading, end: EnergyReading, flag: Flag, words: str
) -> None:
    energy = window_energy(start, end)
    assert energy.energy_mj is None
    assert energy.uncertainty_mj is None
    assert flag in energy.flags
    assert Flag.ENERGY_UNKNOWN in energy.flags
    assert words in (energy.reason or "")


def test_a_process_that_slept_used_an_estimated_zero() -> None:
    start, end = (reading(t, 1_000)._replace(method="estimate", scope="process") for t in (0, 10))
    assert window_energy(start, end).energy_mj == 0


def test_flags_of_both_ends_reach_the_window_once() -> None:
    start = reading(0, 0)._replace(flags=(Flag.ESTIMATED,))
    end = reading(1, 5)._replace(flags=(Flag.ESTIMATED, Flag.MIG_PARENT))
    assert window_energy(start, end).flags == (Flag.ESTIMATED, Flag.MIG_PARENT)


@pytest.mark.parametrize(
    ("seconds", "flags"),
    [
        (0.0, (Flag.SHORT_WINDOW_REFUSED,)),
        (0.999, (Flag.SHORT_WINDOW_REFUSED,)),
        (math.nan, (Flag.SHORT_WINDOW_REFUSED,)),
        (1.0, (Flag.SHORT_WINDOW,)),
        (9.99, (Flag.SHORT_WINDOW,)),
        (10.0, ()),
    ],
)
def test_short_windows_are_flagged_and_very_short_ones_refused(
    seconds: float, flags: tuple[Flag, ...]
) -> None:
    assert window_flags(seconds) == flags


@pytest.mark.parametrize(
    ("counter_mj", "integral_mj", "disagree"),
    [(100.0, 96.0, False), (100.0, 94.0, True), (94.0, 100.0, True), (None, 1.0, False), (0.0, 0.0, False)],
)
def test_methods_disagree_beyond_five_per_cent(
    counter_mj: float | None, integral_mj: float | None, disagree: bool
) -> None:
    assert methods_disagree(counter_mj, integral_mj) is disagree
