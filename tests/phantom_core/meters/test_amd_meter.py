import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from phantom_core.meters.amd_meter import AmdMeter
from phantom_core.meters.base import DeviceNotFound, MeterUnavailable
from phantom_core.meters.choose import MeterRequest, open_distinct_meters, open_meter
from phantom_core.meters.windows import window_energy
from tests.nvml_stub.harness import Clock

UUID = "c4ff74a1-0000-1000-80ac-4a1f1e7d1d3a"

TORCH_UUID = "35386439-3066-3830-6233-663462396232"
"""What PyTorch makes of the characters 58d90f80b3f4b9b2."""


class AmdSmiException(Exception):
    pass


class Board:
    """An MI300X at a steady power whose accumulator moves every 10 ms."""

    def __init__(self, clock: Clock, watts: float = 500.0, scale: float = 1.0) -> None:
        self.clock, self.watts, self.scale = clock, watts, scale
        self.lost = False

    def energy(self) -> dict[str, float]:
        if self.lost:
            raise AmdSmiException("AMDSMI_STATUS_DRM_ERROR")
        moved_s = self.clock.now_s // 0.01 * 0.01
        return {
            "energy_accumulator": int(self.scale * self.watts * moved_s * 1e6 / 15.259),
            "counter_resolution": 15.259,
            "timestamp": 0,
        }


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Board], dict[str, int]]:
    def installed(board: Board) -> dict[str, int]:
        opened = {"count": 0}
        fake: Any = ModuleType("amdsmi")
        fake.AmdSmiException = AmdSmiException
        fake.amdsmi_init = lambda: opened.update(count=opened["count"] + 1)
        fake.amdsmi_shut_down = lambda: opened.update(count=opened["count"] - 1)
        fake.amdsmi_get_processor_handles = lambda: [board]
        fake.amdsmi_get_gpu_device_uuid = lambda handle: UUID
        fake.amdsmi_get_gpu_enumeration_info = lambda handle: {"hip_uuid": "GPU-58d90f80b3f4b9b2"}
        fake.amdsmi_get_gpu_asic_info = lambda handle: {"market_name": "AMD Instinct MI300X"}
        fake.amdsmi_get_gpu_driver_info = lambda handle: {"driver_version": "6.10.5"}
        fake.amdsmi_get_power_cap_info = lambda handle: {"power_cap": 750_000_000}
        fake.amdsmi_get_power_info = lambda handle: {
            "current_socket_power": int(handle.watts),
            "average_socket_power": "N/A",
        }
        fake.amdsmi_get_gpu_activity = lambda handle: {"gfx_activity": 97, "umc_activity": 3}
        fake.amdsmi_get_gpu_process_list = lambda handle: [{"pid": 9}, {"pid": 4}]
        fake.amdsmi_get_energy_count = lambda handle: handle.energy()
        monkeypatch.setitem(sys.modules, "amdsmi", fake)
        return opened

    return installed


@pytest.mark.parametrize(
    "uuid", [UUID, UUID.upper(), f"GPU-{UUID}", "GPU-58d90f80b3f4b9b2", "58d90f80b3f4b9b2", TORCH_UUID]
)
def test_a_board_is_metered_by_its_accumulator_found_by_uuid(
    install: Callable[[Board], dict[str, int]], uuid: str
) -> None:
    clock = Clock()
    opened = install(Board(clock))
    with AmdMeter(uuid, "host", clock.monotonic, clock.sleep) as meter:
        assert (meter.device.kind, meter.device.method, meter.device.scope) == (
            "rocm",
            "amdsmi.counter",
            "gpu",
        )
        assert (meter.device.name, meter.device.power_limit_mw) == ("AMD Instinct MI300X", 750_000)
        start = meter.read_energy()
        clock.sleep(10.0)
        energy = window_energy(start, meter.read_energy())
        power, state = meter.read_power(), meter.read_state()
    assert energy.energy_mj == pytest.approx(5_000_000, rel=0.001)
    assert energy.uncertainty_mj == pytest.approx(0.01 * 750_000, rel=0.3)
    assert (power.power_mw, power.method) == (500_000, "instant")
    assert (state.utilization_percent, state.process_ids) == (97, (4, 9))
    assert opened["count"] == 0


def test_an_accumulator_that_contradicts_the_power_is_not_believed(
    install: Callable[[Board], dict[str, int]],
) -> None:
    clock = Clock()
    install(Board(clock, scale=0.1))
    with AmdMeter(UUID, "host", clock.monotonic, clock.sleep) as meter:
        assert meter.device.method is None
        assert "can't be right" in (meter.read_energy().reason or "")
        assert meter.read_energy().energy_mj is None
        assert meter.read_power().power_mw == 500_000


def test_a_lost_board_is_none_with_the_reason(install: Callable[[Board], dict[str, int]]) -> None:
    clock = Clock()
    board = Board(clock)
    install(board)
    with AmdMeter(UUID, "host", clock.monotonic, clock.sleep) as meter:
        start = meter.read_energy()
        board.lost = True
        clock.sleep(1.0)
        lost = meter.read_energy()
    assert lost.energy_mj is None
    assert "AMDSMI_STATUS_DRM_ERROR" in (lost.reason or "")
    assert window_energy(start, lost).energy_mj is None


def test_a_uuid_of_no_board_is_refused_and_leaves_the_driver_closed(
    install: Callable[[Board], dict[str, int]],
) -> None:
    clock = Clock()
    opened = install(Board(clock))
    with pytest.raises(DeviceNotFound, match=UUID):
        AmdMeter("GPU-0", "host", clock.monotonic, clock.sleep)
    assert opened["count"] == 0


def test_a_driver_that_can_not_list_its_boards_is_unavailable(
    install: Callable[[Board], dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    opened = install(Board(clock))

    def fail() -> None:
        raise AmdSmiException("AMDSMI_STATUS_NO_PERM")

    monkeypatch.setattr(sys.modules["amdsmi"], "amdsmi_get_processor_handles", fail)
    with pytest.raises(MeterUnavailable, match="NO_PERM"):
        AmdMeter(UUID, "host", clock.monotonic, clock.sleep)
    assert opened["count"] == 0


def test_that_the_package_is_missing_is_told_once_however_many_boards_there_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    meters = open_distinct_meters([MeterRequest("rocm", uuid=f"GPU-{n}") for n in range(4)])
    assert [meter.device.method for meter in meters] == [None] * 4
    assert all("pip install" in (meter.device.reason or "") for meter in meters)
    assert caplog.text.count("pip install") == 1


def test_a_module_is_not_asked_for_in_vain() -> None:
    with open_meter(MeterRequest("rocm", uuid=UUID, scope="module")) as meter:
        assert (meter.device.method, meter.device.scope) == (None, None)
        assert "gpu_scope = module" in (meter.read_energy().reason or "")


def test_without_the_package_a_board_is_unreadable_and_the_reason_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with open_meter(MeterRequest("rocm", uuid=UUID)) as meter:
        assert meter.device.method is None
        assert "pip install" in (meter.read_energy().reason or "")
