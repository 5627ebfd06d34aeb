"""Whatever a trace does: energy is never negative, and the two methods agree. That no board counts twice is held where
sums are made, by `tests/services/test_window_sums.py`."""

import math
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from phantom_core.flags import Flag
from phantom_core.meters.base import EnergyReading, Instant
from phantom_core.meters.integration import SENSOR_PERIOD_S, integrate_power
from phantom_core.meters.nvml_library import NvmlSession
from phantom_core.meters.nvml_lookup import find_board
from phantom_core.meters.nvml_meter import NvmlMeter
from phantom_core.meters.windows import window_energy
from phantom_core.protocol import Method, Scope
from tests.nvml_stub.harness import (
    NOT_SUPPORTED,
    TIMEOUT,
    Failure,
    LoadedStub,
    NvmlStub,
    StubBoard,
    StubScript,
)

LIMIT_MW = 700_000.0


def instant(monotonic_s: float) -> Instant:
    return Instant(1.8e9 + monotonic_s, monotonic_s)


@dataclass(frozen=True)
class Waves:
    """A smooth power: a level and waves on it, none faster than a second; milliwatts over seconds."""

    level_mw: float
    waves: tuple[tuple[float, float, float], ...]
    """(amplitude mW, period s, phase)."""

    def power_mw(self, t: float) -> float:
        return self.level_mw + sum(a * math.sin(2 * math.pi * t / p + f) for a, p, f in self.waves)

    def energy_mj(self, t: float) -> float:
        waved = sum(a * p / (2 * math.pi) * math.cos(2 * math.pi * t / p + f) for a, p, f in self.waves)
        return self.level_mw * t - waved


@st.composite
def smooth_traces(draw: st.DrawFn, fastest_s: float = 1.0) -> Waves:
    waves = draw(
        st.lists(
            st.tuples(st.floats(0, 80_000), st.floats(fastest_s, 30), st.floats(0, 2 * math.pi)),
            min_size=0,
            max_size=3,
        )
    )
    floor = sum(amplitude for amplitude, _, _ in waves)
    return Waves(draw(st.floats(floor + 1, LIMIT_MW - floor)), tuple(waves))


def counter_reading(
    energy_mj: Callable[[float], float], t: float, period_s: float, phase_s: float
) -> EnergyReading:
    refreshed_s = math.floor((t - phase_s) / period_s) * period_s + phase_s
    return EnergyReading(
        instant(t),
        energy_mj(refreshed_s),
        "nvml.counter",
        "gpu",
        uncertainty_mj=period_s * LIMIT_MW,
        lag_s=period_s,
    )


@settings(deadline=None)
@given(
    trace=smooth_traces(),
    period_s=st.sampled_from([0.02, 0.1]),
    phase_s=st.floats(0, 0.1),
    start_s=st.floats(1, 2),
    duration_s=st.floats(1, 20),
    rate_hz=st.sampled_from([10.0, 20.0]),
    jitter=st.lists(st.floats(-0.3, 0.3), min_size=7, max_size=7),
)
def test_counter_integral_and_truth_agree_within_their_bounds_on_any_smooth_trace(
    trace: Waves,
    period_s: float,
    phase_s: float,
    start_s: float,
    duration_s: float,
    rate_hz: float,
    jitter: list[float],
) -> None:
    end_s = start_s + duration_s
    true_mj = trace.energy_mj(end_s) - trace.energy_mj(start_s)

    def edge_power(edge_s: float) -> float:
        return max(trace.power_mw(edge_s - period_s * n / 10) for n in range(11))

    counted = window_energy(
        counter_reading(trace.energy_mj, start_s, period_s, phase_s),
        counter_reading(trace.energy_mj, end_s, period_s, phase_s),
        [edge_power(start_s), edge_power(end_s)],
    )
    times = [(n + jitter[n % len(jitter)]) / rate_hz for n in range(round((end_s + 1) * rate_hz))]
    samples = [(t, trace.power_mw(math.floor((t - phase_s) / period_s) * period_s + phase_s)) for t in times]
    integral = integrate_power(samples, start_s, end_s, rate_hz=rate_hz, sensor_period_s=period_s)

    slack_mj = 1e-3 + 1e-3 * true_mj / duration_s
    assert counted.energy_mj is not None
    assert counted.uncertainty_mj is not None
    assert abs(counted.energy_mj - true_mj) <= counted.uncertainty_mj + slack_mj
    assert integral.energy_mj is not None
    assert integral.uncertainty_mj is not None
    assert abs(integral.energy_mj - true_mj) <= integral.uncertainty_mj + slack_mj
    assert (
        abs(integral.energy_mj - counted.energy_mj)
        <= integral.uncertainty_mj + counted.uncertainty_mj + slack_mj
    )


MISSING = ("dropped", "none", "nan", "infinite", "negative")


@settings(deadline=None)
@given(
    trace=smooth_traces(fastest_s=3.0),
    start_s=st.floats(1, 2),
    duration_s=st.floats(1, 20),
    fates=st.lists(st.sampled_from(["kept", "kept", "twice", *MISSING]), min_size=1, max_size=12).filter(
        lambda fates: all(
            any(each not in MISSING for each in (fates * 4)[at : at + 3]) for at in range(len(fates))
        )
    ),
    shuffled=st.randoms(use_true_random=False),
)
def test_samples_that_are_lost_doubled_or_no_numbers_leave_the_integral_within_its_bound(
    trace: Waves, start_s: float, duration_s: float, fates: list[str], shuffled: random.Random
) -> None:
    """At most two samples in a row are missing, on traces that are smooth for such pauses."""
    end_s, rate_hz, period_s = start_s + duration_s, 10.0, 0.1
    samples: list[tuple[float, float | None]] = []
    for n in range(round((end_s + 1) * rate_hz)):
        t = n / rate_hz
        power_mw = trace.power_mw(math.floor(t / period_s) * period_s)
        match fates[n % len(fates)]:
            case "kept":
                samples.append((t, power_mw))
            case "twice":
                samples += [(t, power_mw)] * 2
            case "none":
                samples.append((t, None))
            case "nan":
                samples.append((t, math.nan))
            case "infinite":
                samples.append((t, math.inf))
            case "negative":
                samples.append((t, -power_mw - 1))
    shuffled.shuffle(samples)
    integral = integrate_power(samples, start_s, end_s, rate_hz=rate_hz, sensor_period_s=period_s)
    true_mj = trace.energy_mj(end_s) - trace.energy_mj(start_s)
    assert integral.energy_mj is not None
    assert integral.uncertainty_mj is not None
    assert abs(integral.energy_mj - true_mj) <= integral.uncertainty_mj + 1e-3 + 1e-3 * true_mj / duration_s


readings = st.builds(
    EnergyReading,
    instant=st.floats(-1e6, 1e6).map(instant),
    energy_mj=st.none() | st.floats() | st.integers(0, 2**64).map(float),
    method=st.none() | st.sampled_from(list[Method](["nvml.counter", "nvml.power", "rapl", "estimate"])),
    scope=st.none() | st.sampled_from(list[Scope](["gpu", "module", "package", "process"])),
    uncertainty_mj=st.none() | st.floats(0, 1e9),
    lag_s=st.none() | st.floats(0, 10),
    accumulated_mj=st.floats(0, 1e9),
    epoch=st.integers(0, 2),
)


@settings(deadline=None)
@given(start=readings, end=readings, edges=st.lists(st.none() | st.floats(0), max_size=3))
def test_no_two_readings_make_a_negative_energy_or_a_zero_that_stands_for_unknown(
    start: EnergyReading, end: EnergyReading, edges: list[float | None]
) -> None:
    energy = window_energy(start, end, edges)
    if energy.energy_mj is None:
        assert energy.reason
        assert Flag.ENERGY_UNKNOWN in energy.flags
        assert (energy.method, energy.scope, energy.uncertainty_mj) == (None, None, None)
    else:
        assert math.isfinite(energy.energy_mj)
        assert energy.energy_mj > 0 or (energy.energy_mj == 0 and energy.method == "estimate")
        assert energy.uncertainty_mj is None or energy.uncertainty_mj >= 0


@settings(deadline=None)
@given(
    samples=st.lists(st.tuples(st.floats(), st.none() | st.floats()), max_size=30),
    start_s=st.floats(),
    end_s=st.floats(),
    rate_hz=st.none() | st.floats(0.1, 50),
)
def test_no_samples_make_a_negative_integral(
    samples: list[tuple[float, float | None]], start_s: float, end_s: float, rate_hz: float | None
) -> None:
    integral = integrate_power(samples, start_s, end_s, rate_hz=rate_hz)
    if integral.energy_mj is None:
        assert integral.reason
        assert integral.uncertainty_mj is None
    else:
        assert 0 <= integral.energy_mj < math.inf
        assert integral.uncertainty_mj is not None
        assert 0 <= integral.uncertainty_mj < math.inf


@dataclass(frozen=True)
class Mishaps:
    """What befalls a board and its driver while it is metered."""

    reset_s: float | None
    reload_s: float | None
    lost: tuple[float, float] | None
    unread: tuple[float, float] | None

    def spoils(self, from_s: float, to_s: float) -> bool:
        """Whether the counter started over between two moments."""
        return any(each is not None and from_s <= each <= to_s for each in (self.reset_s, self.reload_s))


spans = st.tuples(st.floats(1, 21), st.floats(0.01, 5)).map(lambda span: (span[0], span[0] + span[1]))
mishaps = st.builds(
    Mishaps,
    reset_s=st.none() | st.floats(1, 21),
    reload_s=st.none() | st.floats(1, 21),
    lost=st.none() | spans,
    unread=st.none() | spans,
)
corners = st.lists(st.tuples(st.floats(0.05, 5), st.floats(0, 700)), min_size=1, max_size=6)
COUNTER = "nvmlDeviceGetTotalEnergyConsumption"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    corners=corners,
    times_s=st.lists(st.floats(0, 20), min_size=2, max_size=8).map(sorted),
    period_s=st.sampled_from([0.02, 0.1]),
    mishap=mishaps,
)
def test_through_the_real_binding_every_window_of_any_trace_is_right_within_its_bound_or_none(
    nvml_stub: NvmlStub,
    corners: list[tuple[float, float]],
    times_s: list[float],
    period_s: float,
    mishap: Mishaps,
) -> None:
    """Windows between any two readings: one after the other, overlapping, nested, and of no length at all."""
    power, opened_s = polygon(corners), 0.0
    board = StubBoard(
        power=power,
        period_s=period_s,
        resets=() if mishap.reset_s is None else (mishap.reset_s,),
        lost=mishap.lost,
        failures=() if mishap.unread is None else (Failure(COUNTER, TIMEOUT, mishap.unread),),
    )
    script = StubScript(boards=(board,), reloads=() if mishap.reload_s is None else (mishap.reload_s,))
    with metered(nvml_stub, script) as (stub, meter):
        opened_s = stub.clock.now_s
        seen = []
        for time_s in times_s:
            stub.clock.set(opened_s + time_s)
            seen.append(meter.read_energy())
    for start, end in combinations(seen, 2):
        from_s, to_s = start.instant.monotonic_s, end.instant.monotonic_s
        energy = window_energy(start, end)
        if energy.energy_mj is None:
            assert energy.reason
            assert Flag.ENERGY_UNKNOWN in energy.flags
            continue
        assert energy.energy_mj > 0
        assert mishap.reload_s is None or not from_s <= mishap.reload_s <= to_s, "no window spans a reload"
        if not mishap.spoils(from_s, to_s):
            assert energy.uncertainty_mj is not None
            off_mj = abs(energy.energy_mj - polygon_mj(power, from_s, to_s))
            assert off_mj <= energy.uncertainty_mj + 2  # the counter shows whole millijoules


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(corners=[(1.0, 2.0), (1.0, 0.0)], edges=[0, 1], period_s=0.1, hole=None)
@example(corners=[(1.0, 2.0), (1.0, 0.0)], edges=[0, 4], period_s=0.1, hole=None)
@example(corners=[(1.0, 700.0), (1.0, 700.0), (1.0, 0.0)], edges=[5, 24], period_s=0.1, hole=None)
@given(
    corners=st.lists(st.tuples(st.floats(0.5, 5), st.floats(0, 700)), min_size=1, max_size=5),
    edges=st.lists(st.integers(0, 200), min_size=2, max_size=6, unique=True).map(sorted),
    period_s=st.sampled_from([0.02, 0.1]),
    hole=st.none() | st.tuples(st.integers(0, 200), st.integers(1, 60)),
)
def test_power_that_is_integrated_for_want_of_a_counter_is_right_within_its_bound_or_none(
    nvml_stub: NvmlStub,
    corners: list[tuple[float, float]],
    edges: list[int],
    period_s: float,
    hole: tuple[int, int] | None,
) -> None:
    """Read every 50 ms but in a hole; no corners are so near that power rises and falls in between unseen."""
    power = polygon(corners)
    board = StubBoard(power=power, period_s=period_s, failures=(Failure(COUNTER, NOT_SUPPORTED),))
    with metered(nvml_stub, StubScript(boards=(board,))) as (stub, meter):
        opened_s, seen = stub.clock.now_s, {}
        for n in range(edges[-1] + 1):
            if n in edges or hole is None or not hole[0] <= n < sum(hole):
                stub.clock.set(opened_s + 0.05 * n)
                seen[n] = meter.read_energy()
    for first, last in combinations(edges, 2):
        start, end = seen[first], seen[last]
        energy = window_energy(start, end)
        if energy.energy_mj is None:
            assert energy.reason
            continue
        assert energy.energy_mj > 0
        assert energy.method == "nvml.power"
        pauses = [b - a for a, b in pairwise(sorted(n for n in seen if first <= n <= last))]
        from_s, to_s = start.instant.monotonic_s, end.instant.monotonic_s
        if max(pauses) == 1 and all_shows(power, from_s, to_s):
            assert energy.uncertainty_mj is not None
            off_mj = abs(energy.energy_mj - polygon_mj(power, from_s, to_s))
            assert off_mj <= energy.uncertainty_mj + 2 + (to_s - from_s)  # power shows whole milliwatts


def all_shows(power: Sequence[tuple[float, float]], from_s: float, to_s: float) -> bool:
    """Whether samples can have seen what power did, as the bound assumes (`integration`)."""
    unseen_s = to_s - SENSOR_PERIOD_S
    return to_s - from_s >= 2 * SENSOR_PERIOD_S and not any(
        unseen_s <= corner_s < to_s for corner_s, _ in power
    )


@contextmanager
def metered(nvml_stub: NvmlStub, script: StubScript) -> Iterator[tuple[LoadedStub, NvmlMeter]]:
    """The meter of the script's first board, in time that moves by hand."""
    with (
        tempfile.TemporaryDirectory() as folder,
        nvml_stub.loaded(script, Path(folder) / "script") as stub,
    ):
        session = NvmlSession(stub.clock.monotonic)
        session.open()
        found = find_board(session, script.boards[0].uuid)
        clock = stub.clock
        with NvmlMeter(session, found, "host", monotonic=clock.monotonic, sleep=clock.sleep) as meter:
            yield stub, meter


def polygon(corners: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Corners (seconds, watts) from pauses before each and watts."""
    power, t = [], 0.0
    for pause_s, watts in corners:
        power.append((t, watts))
        t += pause_s
    return tuple(power)


def polygon_mj(power: Sequence[tuple[float, float]], from_s: float, to_s: float) -> float:
    """Integral of the stub's polygon in millijoules, by fine midpoint sums between its corners."""

    def watts(t: float) -> float:
        if t <= power[0][0]:
            return power[0][1]
        for (p_s, p_w), (q_s, q_w) in pairwise(power):
            if t < q_s:
                return p_w + (q_w - p_w) * (t - p_s) / (q_s - p_s)
        return power[-1][1]

    marks = sorted({from_s, to_s, *(t for t, _ in power if from_s < t < to_s)})
    return sum(1_000 * (b - a) * watts((a + b) / 2) for a, b in pairwise(marks))
