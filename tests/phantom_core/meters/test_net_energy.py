from dataclasses import replace

import pytest

from phantom_core.flags import Flag
from phantom_core.meters.idle import IdlePower
from phantom_core.meters.net_energy import net_energy
from phantom_core.meters.windows import WindowEnergy

GROSS = WindowEnergy(5_000_000, 70_000, "nvml.counter", "gpu")
IDLE_ENERGY = WindowEnergy(200_000, 10_000, "nvml.counter", "gpu")
IDLE = IdlePower("host", "GPU-1", 100_000, 5_000, 2.0, IDLE_ENERGY)


def test_net_is_gross_minus_idle_power_times_seconds_with_both_bounds() -> None:
    net = net_energy(GROSS, 10.0, [IDLE])
    assert (net.gross_mj, net.idle_mj, net.net_mj) == (5_000_000, 1_000_000, 4_000_000)
    assert net.uncertainty_mj == pytest.approx(70_000 + 50_000)
    assert net.flags == ()


def test_of_two_baselines_the_mean_counts_and_half_their_difference_widens_the_bound() -> None:
    warmer = replace(IDLE, power_mw=120_000)
    net = net_energy(GROSS, 10.0, [IDLE, warmer])
    assert net.idle_mj == 1_100_000
    assert net.uncertainty_mj == pytest.approx(70_000 + (5_000 + 10_000) * 10)


def test_an_unknown_baseline_is_left_out_and_without_any_net_is_unknown_with_the_reason() -> None:
    unknown = replace(IDLE, power_mw=None, uncertainty_mw=None, reason="lost")
    assert net_energy(GROSS, 10.0, [unknown, IDLE]).net_mj == 4_000_000
    net = net_energy(GROSS, 10.0, [unknown])
    assert (net.gross_mj, net.idle_mj, net.net_mj, net.reason) == (5_000_000, None, None, "lost")
    assert net_energy(GROSS, 10.0, []).reason == "no idle power was measured"


def test_an_unknown_gross_energy_has_no_net() -> None:
    unknown = WindowEnergy(None, None, None, None, "reset", (Flag.COUNTER_RESET,))
    net = net_energy(unknown, 10.0, [IDLE])
    assert (net.gross_mj, net.net_mj, net.reason) == (None, None, "reset")
    assert net.flags == (Flag.COUNTER_RESET,)


def test_a_baseline_above_the_work_is_refused_but_noise_around_zero_is_kept() -> None:
    idle_board = GROSS._replace(energy_mj=990_000)
    assert net_energy(idle_board, 10.0, [IDLE]).net_mj == -10_000
    impossible = net_energy(GROSS._replace(energy_mj=500_000), 10.0, [IDLE])
    assert impossible.net_mj is None
    assert impossible.flags == (Flag.NOT_IDLE_BASELINE,)


def test_flags_of_the_baselines_stand_beside_the_net_energy() -> None:
    busy = replace(IDLE, energy=IDLE_ENERGY._replace(flags=(Flag.NOT_IDLE_BASELINE,)))
    assert net_energy(GROSS, 10.0, [IDLE, busy]).flags == (Flag.NOT_IDLE_BASELINE,)
