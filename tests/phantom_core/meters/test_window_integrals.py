"""Many windows at once come out as each does alone."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from phantom_core.flags import Flag
from phantom_core.meters import window_integrals
from phantom_core.meters.integration import PowerIntegral, integrate_power
from phantom_core.meters.window_integrals import integrate_windows

MARGIN_S = 5.0
RATE_HZ = 10.0


def trace(seed: int, *, seconds: float = 200.0) -> NDArray[np.float64]:
    """Samples about ten times a second, with everything that samplers bring: gaps, failed reads, moments told twice."""
    random = np.random.default_rng(seed)
    times = np.arange(0, seconds, 1 / RATE_HZ) + random.normal(0, 0.01, round(seconds * RATE_HZ))
    powers = random.uniform(50_000, 700_000, len(times))
    powers[random.random(len(times)) < 0.01] = np.nan
    powers[random.random(len(times)) < 0.01] = -1.0
    for gap_s in random.uniform(0, seconds, 4):
        powers[(times > gap_s) & (times < gap_s + random.uniform(0.3, 9))] = np.nan
    twice = random.integers(0, len(times), 20)
    table = np.column_stack((np.append(times, times[twice]), np.append(powers, powers[twice] / 2)))
    return table[np.argsort(table[:, 0], kind="stable")]


def windows(seed: int, samples: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Windows of all lengths, some at samples' own moments, some beyond both ends, some that make no sense."""
    random = np.random.default_rng(seed + 1)
    starts_s = random.uniform(-10, 210, 400)
    ends_s = starts_s + random.choice([0.01, 0.05, 0.3, 2.0, 20.0], 400)
    starts_s[:50] = random.choice(samples[:, 0], 50)
    ends_s[25:75] = random.choice(samples[:, 0], 50)
    ends_s[75] = starts_s[75]
    ends_s[76] = np.inf
    return starts_s, ends_s


def alone(samples: NDArray[np.float64], start_s: float, end_s: float) -> PowerIntegral:
    times = samples[:, 0]
    around = samples[(times >= start_s - MARGIN_S) & (times < end_s + MARGIN_S)]
    return integrate_power(around, start_s, end_s, rate_hz=RATE_HZ, sensor_period_s=0.1)


def together(
    samples: NDArray[np.float64], starts_s: NDArray[np.float64], ends_s: NDArray[np.float64]
) -> list[PowerIntegral]:
    return integrate_windows(
        samples, starts_s, ends_s, margin_s=MARGIN_S, rate_hz=RATE_HZ, sensor_period_s=0.1
    )


def assert_same(one: PowerIntegral, other: PowerIntegral) -> None:
    assert (one.sample_count, one.reason, one.flags) == (other.sample_count, other.reason, other.flags)
    for name in ("energy_mj", "uncertainty_mj", "largest_gap_s"):
        expected = getattr(other, name)
        assert getattr(one, name) == (
            None if expected is None else pytest.approx(expected, rel=1e-12, abs=1e-6)
        )


@pytest.mark.parametrize("seed", range(10))
def test_many_windows_together_come_out_as_each_alone(seed: int) -> None:
    samples = trace(seed)
    starts_s, ends_s = windows(seed, samples)
    for integral, start_s, end_s in zip(together(samples, starts_s, ends_s), starts_s, ends_s, strict=True):
        assert_same(integral, alone(samples, float(start_s), float(end_s)))


def test_a_sound_trace_is_never_looked_at_window_by_window(monkeypatch: pytest.MonkeyPatch) -> None:
    times = np.arange(0, 1_000, 0.1)
    samples = np.column_stack((times, 100_000 + 1_000 * np.sin(times)))
    starts_s = np.arange(10, 990, 0.5)
    expected = [alone(samples, start_s, start_s + 0.5) for start_s in starts_s.tolist()]

    def refuse(*args: object, **kwargs: object) -> PowerIntegral:
        raise AssertionError("a window that is seen from end to end was looked at alone")

    monkeypatch.setattr(window_integrals, "integrate_power", refuse)
    for integral, each in zip(together(samples, starts_s, starts_s + 0.5), expected, strict=True):
        assert_same(integral, each)


def test_portions_that_fit_into_memory_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = trace(3)
    starts_s, ends_s = windows(3, samples)
    whole = together(samples, starts_s, ends_s)
    monkeypatch.setattr(window_integrals, "PIECES_AT_ONCE", 50)
    assert together(samples, starts_s, ends_s) == whole


def test_what_lies_beyond_the_margins_does_not_touch_the_last_digit() -> None:
    samples = trace(5)
    starts_s, ends_s = windows(5, samples)
    whole = together(samples, starts_s, ends_s)
    for index in range(0, 400, 7):
        start_s, end_s = starts_s[index], ends_s[index]
        near = (samples[:, 0] >= start_s - MARGIN_S) & (samples[:, 0] < end_s + MARGIN_S)
        assert together(samples[near], starts_s[index : index + 1], ends_s[index : index + 1]) == [
            whole[index]
        ]


@pytest.mark.parametrize("samples", [np.zeros((0, 2)), np.array([[100.0, 5.0]])])
def test_too_few_samples_make_no_integral(samples: NDArray[np.float64]) -> None:
    (integral,) = together(samples, np.array([99.0]), np.array([101.0]))
    assert integral.energy_mj is None
    assert integral.flags == (Flag.SAMPLER_GAP,)


def test_powers_too_large_to_add_up_are_unknown_with_the_reason() -> None:
    times = np.arange(0, 20, 0.1)
    samples = np.column_stack((times, np.where(np.arange(200) % 2, 1e308, 0.0)))
    (integral,) = together(samples, np.array([5.0]), np.array([15.0]))
    assert integral.energy_mj is None
    assert "too large" in str(integral.reason)
    assert not math.isnan(integral.largest_gap_s or math.nan)
