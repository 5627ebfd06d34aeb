import math
import os
import subprocess
import sys
import threading

import psutil
import pytest

from phantom_core.flags import Flag
from phantom_core.meters.base import MeterUnavailable
from phantom_core.meters.choose import MeterRequest, open_distinct_meters, open_meter
from phantom_core.meters.cpu_estimate import WATTS_PER_CORE, CpuTimeMeter
from phantom_core.meters.windows import window_energy


def work() -> None:
    sum(number * number for number in range(300_000))


def estimate(rank: int | None = 0, pid: int | None = None, watts: float = WATTS_PER_CORE) -> MeterRequest:
    return MeterRequest("cpu", rank=rank, pid=pid, watts_per_core=watts, cpu_method="estimate", host="host")


def test_an_estimate_is_cpu_time_times_watts_labelled_as_one_everywhere() -> None:
    with open_meter(estimate(watts=5.0)) as meter:
        start = meter.read_energy()
        before_s = os.times().user + os.times().system
        work()
        after_s = os.times().user + os.times().system
        energy = window_energy(start, meter.read_energy())
    assert energy.energy_mj == pytest.approx(5_000 * (after_s - before_s), abs=5_000 * 0.05)
    assert energy.flags == (Flag.ESTIMATED,)
    assert (energy.method, energy.scope) == ("estimate", "process")
    assert energy.uncertainty_mj == pytest.approx(0.5 * (energy.energy_mj or math.nan))
    assert "estimated: CPU time x 5 W per core, not measured" in (energy.reason or "")


def test_threads_of_the_process_count() -> None:
    with open_meter(estimate()) as meter:
        start = meter.read_energy()
        worker = threading.Thread(target=work)
        worker.start()
        worker.join()
        energy = window_energy(start, meter.read_energy())
    assert energy.energy_mj is not None
    assert energy.energy_mj > 0


def test_ranks_of_one_machine_are_devices_of_their_own() -> None:
    meters = open_distinct_meters([estimate(0), estimate(1), estimate(0)])
    assert [meter.device.uuid for meter in meters] == ["process-rank-0", "process-rank-1"]


def test_a_process_is_metered_from_outside_under_the_same_name_as_from_inside() -> None:
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        with open_meter(estimate(3).from_outside(child.pid)) as meter:
            assert meter.device.uuid == "process-rank-3"
            start = meter.read_energy()
            child.stdout.readline()
            end = meter.read_energy()
            energy = window_energy(start, end)
            assert meter.read_power().method == "estimate"
            child.communicate(b"\n")
            gone = meter.read_energy()
    finally:
        child.kill()
        child.wait()
    assert end.energy_mj is not None
    assert end.energy_mj >= 1_000 * WATTS_PER_CORE * 0.28
    assert energy.energy_mj is not None
    assert gone.energy_mj is None
    assert str(child.pid) in (gone.reason or "")
    assert window_energy(start, gone).energy_mj is None


def test_a_process_that_does_not_exist_is_unreadable_with_the_reason() -> None:
    with open_meter(estimate(pid=2**22 + 1)) as meter:
        assert meter.device.uuid == "process-rank-0"
        assert meter.read_energy().energy_mj is None
        assert meter.read_power().power_mw is None
        assert "can't be metered" in (meter.read_energy().reason or "")
    with pytest.raises(MeterUnavailable):
        CpuTimeMeter("host", "uuid", "CPU", pid=2**22 + 1)


def test_power_is_the_mean_since_the_last_reading_and_never_more_than_all_cores() -> None:
    with open_meter(estimate()) as meter:
        work()
        busy = meter.read_power()
        again = [meter.read_power() for _ in range(3)]
    assert busy.power_mw is not None
    assert 0 < busy.power_mw <= 1_000 * WATTS_PER_CORE * (os.cpu_count() or 1) * 1.5
    assert all(reading.power_mw is None or reading.power_mw >= 0 for reading in again)


@pytest.mark.parametrize("watts", [0.0, -1.0, math.nan, math.inf, 1e6])
def test_watts_that_are_no_power_are_refused(watts: float) -> None:
    with pytest.raises(ValueError, match="watts_per_core"):
        open_meter(estimate(watts=watts))


@pytest.mark.parametrize("uuid", [None, ""])
def test_a_board_without_a_uuid_is_refused(uuid: str | None) -> None:
    with pytest.raises(ValueError, match="found by its UUID alone"):
        open_meter(MeterRequest("cuda", uuid=uuid))


def test_after_a_fork_the_child_is_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_meter(estimate()) as meter:
        start = meter.read_energy()
        work()  # so that the total grows, as that of a busy child would beyond its parent's
        parent = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: parent + 1)
        energy = window_energy(start, meter.read_energy())
    assert energy.energy_mj is None
    assert Flag.COUNTER_RESET in energy.flags


def test_a_process_id_that_another_process_got_is_not_metered_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_meter(estimate().from_outside(os.getppid())) as meter:
        assert meter.read_energy().energy_mj is not None
        monkeypatch.setattr(psutil.Process, "is_running", lambda self: False)  # psutil compares start times
        assert meter.read_energy().energy_mj is None
        assert "has ended" in (meter.read_energy().reason or "")
