import logging
import os
import threading
from pathlib import Path

import pytest

from phantom_core.flags import Flag
from phantom_core.meters.base import MeterUnavailable
from phantom_core.meters.choose import MeterRequest, open_meter
from phantom_core.meters.rapl import RaplMeter, find_domains, find_powercap
from phantom_core.meters.windows import window_energy
from tests.nvml_stub.harness import Clock

RANGE_UJ = 262_143_328_850


def zone(
    powercap: Path, folder: str, name: str, uj: int, range_uj: int | None = RANGE_UJ, limit_w: int = 200
) -> Path:
    made = powercap / folder
    made.mkdir(parents=True)
    (made / "name").write_text(name + "\n")
    (made / "energy_uj").write_text(f"{uj}\n")
    if range_uj is not None:
        (made / "max_energy_range_uj").write_text(f"{range_uj}\n")
    (made / "constraint_0_max_power_uw").write_text(f"{limit_w * 1_000_000}\n")
    return made


def add(made: Path, joules: float, range_uj: int = RANGE_UJ) -> None:
    """Moves a counter on, wrapping it as the hardware does."""
    counter = made / "energy_uj"
    counter.write_text(f"{(int(counter.read_text()) + round(joules * 1e6)) % range_uj}\n")


def test_packages_and_their_memory_are_added_up_as_one_device(tmp_path: Path) -> None:
    packages = [zone(tmp_path, f"intel-rapl:{n}", f"package-{n}", 1_000_000 * n) for n in range(2)]
    memory = zone(tmp_path, "intel-rapl:0:1", "dram", 5)
    clock = Clock()
    with RaplMeter("host", "EPYC", tmp_path, clock.monotonic) as meter:
        assert (meter.device.method, meter.device.scope) == ("rapl", "package+dram")
        start = meter.read_energy()
        clock.sleep(10)
        for made, joules in ((packages[0], 1_000), (packages[1], 500), (memory, 100)):
            add(made, joules)
        energy = window_energy(start, meter.read_energy())
    assert energy.energy_mj == pytest.approx(1_600_000)
    assert energy.uncertainty_mj == pytest.approx(0.001 * 3 * 200_000)
    assert energy.flags == ()


def test_no_joule_is_counted_twice(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 0)
    zone(tmp_path, "intel-rapl:0:0", "core", 0)
    zone(tmp_path, "intel-rapl:1", "psys", 0)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 0)
    assert [domain.name for domain in find_domains(tmp_path).usable] == ["package-0"]


def test_a_wrap_around_is_undone(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", RANGE_UJ - 50_000_000)
    clock = Clock()
    with RaplMeter("host", "EPYC", tmp_path, clock.monotonic) as meter:
        start = meter.read_energy()
        clock.sleep(10)
        add(package, 120)
        energy = window_energy(start, meter.read_energy())
        assert int((package / "energy_uj").read_text()) < 100_000_000
    assert energy.energy_mj == pytest.approx(120_000)


def test_a_pause_in_which_a_wrap_could_be_missed_has_no_energy(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", 0, limit_w=200)
    clock = Clock()
    with RaplMeter("host", "EPYC", tmp_path, clock.monotonic) as meter:
        start = meter.read_energy()
        clock.sleep(RANGE_UJ / 1e6 / 200 + 1)
        add(package, 100)
        energy = window_energy(start, meter.read_energy())
    assert energy.energy_mj is None
    assert Flag.COUNTER_RESET in energy.flags


def test_long_windows_are_kept_up_with_by_reading_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    range_uj = 2_000_000
    package = zone(tmp_path, "intel-rapl:0", "package-0", 0, range_uj=range_uj, limit_w=20)
    seen = threading.Event()
    read = Path.read_text

    def watched(self: Path) -> str:
        text = read(self)
        if self.name == "energy_uj":
            seen.set()
        return text

    monkeypatch.setattr(Path, "read_text", watched)
    with RaplMeter("host", "EPYC", tmp_path, Clock().monotonic) as meter:
        start = meter.read_energy()
        for _ in range(8):
            next_uj = (int(read(package / "energy_uj")) + 500_000) % range_uj
            (package / "next").write_text(str(next_uj))
            (package / "next").replace(package / "energy_uj")
            seen.clear()
            assert seen.wait(60), "the meter's own thread reads every quarter of the time to a wrap"
        end = meter.read_energy()
    assert start.energy_mj is not None
    assert end.energy_mj is not None
    assert end.epoch == start.epoch
    assert end.energy_mj - start.energy_mj == pytest.approx(4_000)


def test_a_domain_without_a_range_is_left_out_and_flagged(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    zone(tmp_path, "intel-rapl:0:0", "dram", 0, range_uj=None)
    clock = Clock()
    with RaplMeter("host", "EPYC", tmp_path, clock.monotonic) as meter:
        assert meter.device.scope == "package"
        assert "dram (intel-rapl:0:0): max_energy_range_uj can't be read" in (meter.device.reason or "")
        start = meter.read_energy()
        clock.sleep(1)
        add(package, 1)
        energy = window_energy(start, meter.read_energy())
    assert energy.energy_mj == pytest.approx(1_000)
    assert energy.flags == (Flag.DOMAIN_DROPPED,)
    assert "left out" in (energy.reason or "")


def test_packages_without_a_range_leave_nothing_to_read(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 0, range_uj=None)
    with pytest.raises(MeterUnavailable, match="max_energy_range_uj"):
        find_domains(tmp_path)


@pytest.mark.parametrize("text", ["", "nonsense", "-5"])
def test_a_counter_that_is_no_number_is_left_out(tmp_path: Path, text: str) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 0)
    (zone(tmp_path, "intel-rapl:1", "package-1", 0) / "energy_uj").write_text(text)
    found = find_domains(tmp_path)
    assert [domain.name for domain in found.usable] == ["package-0"]
    assert "package-1" in found.dropped[0]


def test_a_host_without_powercap_has_no_rapl(tmp_path: Path) -> None:
    with pytest.raises(MeterUnavailable, match="no package domain"):
        find_domains(tmp_path / "powercap")


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so permission is taken away where it is asked for."""
    read = Path.read_text

    def refuse(self: Path) -> str:
        if self.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return read(self)

    monkeypatch.setattr(Path, "read_text", refuse)


def test_permission_denied_is_said_once_with_how_to_grant_it_and_the_estimate_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    zone(tmp_path, "intel-rapl:0", "package-0", 0)
    forbid(monkeypatch)
    with open_meter(MeterRequest("cpu", rank=0, powercap=tmp_path)) as meter:
        for _ in range(3):
            reading = meter.read_energy()
    assert (reading.method, reading.scope) == ("estimate", "process")
    assert "sudo chmod a+r" in (meter.device.reason or "")
    assert caplog.text.count("sudo chmod a+r") == 1


def test_rapl_alone_or_nothing_if_that_is_what_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 0)
    with open_meter(MeterRequest("cpu", powercap=tmp_path, cpu_method="rapl")) as meter:
        assert meter.device.method == "rapl"
    forbid(monkeypatch)
    with open_meter(MeterRequest("cpu", powercap=tmp_path, cpu_method="rapl")) as meter:
        assert meter.device.method is None
        assert "not permitted" in (meter.read_energy().reason or "")


def test_a_counter_that_goes_away_is_none_and_no_window_spans_its_absence(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    clock = Clock()
    with RaplMeter("host", "EPYC", tmp_path, clock.monotonic) as meter:
        start = meter.read_energy()
        (package / "energy_uj").rename(package / "gone")
        lost = meter.read_energy()
        (package / "gone").rename(package / "energy_uj")
        clock.sleep(1)
        end = meter.read_energy()
    assert lost.energy_mj is None
    assert "RAPL" in (lost.reason or "")
    assert Flag.COUNTER_RESET in window_energy(start, end).flags


def test_power_is_the_mean_since_the_last_reading(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    clock = Clock()
    with RaplMeter("host", "EPYC", tmp_path, clock.monotonic) as meter:
        assert meter.read_power().power_mw is None
        clock.sleep(2)
        add(package, 100)
        power = meter.read_power()
    assert power.power_mw == pytest.approx(50_000)
    assert power.method == "average"


def test_a_forked_child_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    clock = Clock()
    with RaplMeter("host", "EPYC", tmp_path, clock.monotonic) as meter:
        start = meter.read_energy()
        clock.sleep(1)
        add(package, 1)
        parent = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: parent + 1)
        child = meter.read_energy()
    assert Flag.COUNTER_RESET in window_energy(start, child).flags


def test_where_a_container_has_the_domains_mounted_is_looked_at_after_linuxs_own_place(
    tmp_path: Path,
) -> None:
    own, mounted = tmp_path / "own", tmp_path / "mounted"
    own.mkdir()
    (own / "intel-rapl:0").symlink_to(tmp_path / "masked")
    assert find_powercap([own, mounted]) == own
    zone(mounted, "intel-rapl:0", "package-0", 0)
    assert find_powercap([own, mounted]) == mounted
    zone(own, "intel-rapl:1", "package-1", 0)
    assert find_powercap([own, mounted]) == own
