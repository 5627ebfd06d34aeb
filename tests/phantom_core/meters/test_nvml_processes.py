"""NVML as other processes find it: by the library's name, after a fork, several at once, or not at all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nvml_stub.harness import NO_PERMISSION, NOT_SUPPORTED, Failure, NvmlStub, StubBoard, StubScript

UUID = StubBoard().uuid
OTHER = "GPU-22222222-2222-2222-2222-222222222222"
SLICE = "MIG-33333333-3333-3333-3333-333333333333"


def test_importing_the_meters_loads_neither_the_driver_nor_torch() -> None:
    code = (
        "import sys, phantom_core.meters.choose, phantom_core.meters.sampling, phantom_core.meters.idle\n"
        "print([name for name in ('pynvml', 'torch', 'ray', 'amdsmi') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout.strip() == "[]"


def test_without_a_driver_a_board_is_unreadable_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    code = (
        "from phantom_core.meters.choose import MeterRequest, open_meter\n"
        f"with open_meter(MeterRequest('cuda', uuid={UUID!r})) as meter:\n"
        "    print(meter.device.method, meter.read_energy().energy_mj, meter.read_energy().reason)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    assert done.stdout.startswith("None None NVML can't be opened: no NVIDIA driver is installed")


def test_a_user_without_permission_is_told_so(nvml_stub: NvmlStub, tmp_path: Path) -> None:
    code = (
        "from phantom_core.meters.choose import MeterRequest, open_meter\n"
        f"with open_meter(MeterRequest('cuda', uuid={UUID!r})) as meter:\n"
        "    print(meter.device.reason)"
    )
    printed = nvml_stub.run(code, StubScript(init_code=NO_PERMISSION), tmp_path / "script")
    assert "this user may not open the NVIDIA driver" in printed


@pytest.mark.parametrize(
    "visible",
    [
        None,
        "",
        "-1",
        "0",
        "1",
        "1,0",
        "0,0",
        "7",
        OTHER,
        f"{OTHER},{UUID}",
        "GPU-22",
        "GPU-2,GPU-1",
        SLICE,
        "MIG-3",
        "none",
    ],
)
def test_the_same_board_is_metered_whatever_the_process_may_compute_on(
    nvml_stub: NvmlStub, tmp_path: Path, visible: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    boards = (StubBoard(uuid=OTHER, counter_mj=10**12, slices=(SLICE,)), StubBoard(uuid=UUID, counter_mj=7))
    code = (
        "from phantom_core.meters.choose import MeterRequest, open_meter\n"
        f"with open_meter(MeterRequest('cuda', uuid={UUID!r})) as meter:\n"
        "    print(meter.device.uuid, meter.read_energy().energy_mj < 10**12)"
    )
    printed = nvml_stub.run(code, StubScript(boards=boards), tmp_path / "script")
    assert printed.split() == [UUID, "True"]


FORK = f"""
import json, os, time
from phantom_core.flags import Flag
from phantom_core.meters import accumulator
from phantom_core.meters.choose import MeterRequest, open_meter
from phantom_core.meters.windows import window_energy

accumulator.LONGEST_PAUSE_S = 60.0  # on a machine that is busy with something else

def told(energy):
    return [energy.energy_mj is not None, list(energy.flags), energy.reason]

with open_meter(MeterRequest("cuda", uuid={UUID!r})) as meter:
    start = meter.read_energy()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        first = meter.read_energy()
        if COUNTS_ITSELF:  # which takes a thread, and none comes along through a fork
            before = meter._accumulator._energy_mj
            while meter._accumulator._energy_mj == before:
                time.sleep(0.01)
        while (last := meter.read_energy()).energy_mj == first.energy_mj:
            pass
        windows = [told(window_energy(start, last)), told(window_energy(first, last))]
        os.write(writer, json.dumps(windows).encode())
        meter.close()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    inside = json.loads(os.read(reader, 100_000))
    end = meter.read_energy()
    print(json.dumps([status, *inside, told(window_energy(start, end))]))
"""


@pytest.mark.parametrize("counter", [True, False])
def test_after_a_fork_child_and_parent_read_on_but_no_window_spans_the_fork(
    nvml_stub: NvmlStub, tmp_path: Path, counter: bool
) -> None:
    failures = () if counter else (Failure("nvmlDeviceGetTotalEnergyConsumption", NOT_SUPPORTED),)
    code = FORK.replace("COUNTS_ITSELF", str(not counter))
    script = StubScript(boards=(StubBoard(failures=failures, period_s=0.02),), fork_unsafe=True)
    status, across, child, parent = json.loads(nvml_stub.run(code, script, tmp_path / "script"))
    assert status == 0
    assert across[0] is False
    assert "counter_reset" in across[1]
    assert child == [True, [], child[2]]
    assert parent == [True, [], parent[2]]


def test_processes_on_one_host_see_one_history(nvml_stub: NvmlStub, tmp_path: Path) -> None:
    script = StubScript(boards=(StubBoard(counter_mj=0, power=((0, 1000),)),))
    code = (
        "from phantom_core.meters.choose import MeterRequest, open_meter\n"
        f"with open_meter(MeterRequest('cuda', uuid={UUID!r})) as meter:\n"
        "    reading = meter.read_energy()\n"
        "    print(reading.instant.monotonic_s, reading.energy_mj, reading.lag_s)"
    )
    first, second = (
        [float(word) for word in nvml_stub.run(code, script, tmp_path / f"script-{n}").split()]
        for n in range(2)
    )
    seconds = second[0] - first[0]
    lag_s = max(first[2], second[2])
    assert second[1] - first[1] == pytest.approx(1_000_000 * seconds, abs=1_000_000 * 2 * lag_s)


def test_a_forked_child_that_closes_a_meter_leaves_the_parents_driver_alone(
    nvml_stub: NvmlStub, tmp_path: Path
) -> None:
    code = f"""
import ctypes, os
from phantom_core.meters.choose import MeterRequest, open_meter
with open_meter(MeterRequest("cuda", uuid={UUID!r})) as meter:
    if os.fork() == 0:
        meter.close()
        calls = ctypes.CDLL("libnvidia-ml.so.1").nvmlStubCalls
        print("child", calls(b"nvmlShutdown"), flush=True)
        os._exit(0)
    os.wait()
    print("parent", meter.read_energy().energy_mj is not None)
"""
    printed = nvml_stub.run(code, StubScript(), tmp_path / "script").split()
    assert sorted(zip(printed[::2], printed[1::2], strict=True)) == [("child", "0"), ("parent", "True")]
