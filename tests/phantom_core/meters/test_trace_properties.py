"""Whatever a trace does: energy is never negative, no board counts twice, and the two methods agree."""

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phantom_core.flags import Flag
from phantom_core.meters.base import EnergyReading, Instant
from phantom_core.meters.integration import integrate_power
from phantom_core.meters.nvml_library import NvmlSession
from phantom_core.meters.nvml_lookup import find_board
from phantom_core.meters.nvml_meter import NvmlMeter
from phantom_core.meters.windows import window_energy
from phantom_core.protocol import Method, Scope
from tests.nvml_stub.harness import NvmlStub, StubBoard, StubScript

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
def smooth_traces(draw: st.DrawFn) -> Waves:
    waves = draw(
        st.lists(
            st.tuples(st.floats(0, 80_000), st.floats(1, 30), st.floats(0, 2 * math.pi)),
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


corners = st.lists(st.tuples(st.floats(0.05, 5), st.floats(0, 700)), min_size=1, max_size=6)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    corners=corners,
    times_s=st.lists(st.floats(0, 20), min_size=2, max_size=8, unique=True).map(sorted),
    period_s=st.sampled_from([0.02, 0.1]),
    reset_s=st.none() | st.floats(1, 21),
)
def test_through_the_real_binding_every_window_of_any_trace_is_right_within_its_bound_or_none(
    nvml_stub: NvmlStub,
    corners: list[tuple[float, float]],
    times_s: list[float],
    period_s: float,
    reset_s: float | None,
) -> None:
    power, t = [], 0.0
    for pause_s, watts in corners:
        power.append((t, watts))
        t += pause_s
    board = StubBoard(power=tuple(power), period_s=period_s, resets=() if reset_s is None else (reset_s,))
    with tempfile.TemporaryDirectory() as folder:
        script = StubScript(boards=(board,))
        with nvml_stub.loaded(script, Path(folder) / "script") as stub:
            session = NvmlSession(stub.clock.monotonic)
            session.open()
            found = find_board(session, board.uuid)
            with NvmlMeter(
                session, found, "host", monotonic=stub.clock.monotonic, sleep=stub.clock.sleep
            ) as meter:
                opened_s = stub.clock.now_s
                seen = []
                for time_s in times_s:
                    stub.clock.set(opened_s + time_s)
                    seen.append(meter.read_energy())
    for start, end in pairwise(seen):
        from_s, to_s = start.instant.monotonic_s, end.instant.monotonic_s
        energy = window_energy(start, end)
        if energy.energy_mj is None:
            assert energy.reason
            continue
        assert energy.energy_mj > 0
        if reset_s is None or not from_s <= reset_s <= to_s:
            assert energy.uncertainty_mj is not None
            off_mj = abs(energy.energy_mj - polygon_mj(power, from_s, to_s))
            assert off_mj <= energy.uncertainty_mj + 2  # the counter shows whole millijoules


def polygon_mj(power: list[tuple[float, float]], from_s: float, to_s: float) -> float:
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
