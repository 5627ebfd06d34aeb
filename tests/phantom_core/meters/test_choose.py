import logging
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from phantom_core.meters.choose import MeterRequest, open_distinct_meters, open_meter, processor_name
from tests.nvml_stub.harness import LoadedStub, StubBoard, StubScript

Load = Callable[[StubScript], LoadedStub]
A, B = StubBoard(uuid="GPU-aaaa", slices=("MIG-1", "MIG-2")), StubBoard(uuid="GPU-bbbb")


def cuda(uuid: str, rank: int) -> MeterRequest:
    return MeterRequest("cuda", uuid=uuid, rank=rank, host="host", power_only=True)


def test_ranks_that_share_a_board_or_its_slices_get_one_meter(load: Load) -> None:
    load(StubScript(boards=(A, B)))
    requests = [cuda("GPU-bbbb", 0), cuda("MIG-1", 1), cuda("bbbb", 2), cuda("MIG-2", 3), cuda("GPU-a", 4)]
    meters = open_distinct_meters(requests)
    assert [meter.device.uuid for meter in meters] == ["GPU-bbbb", "GPU-aaaa"]
    for meter in meters:
        assert meter.read_power().power_mw == 100_000
        meter.close()


def test_a_board_that_is_not_there_is_unreadable_and_the_others_are_read(load: Load) -> None:
    load(StubScript(boards=(StubBoard(uuid="GPU-cccc", lost=(-1, 99)), B)))
    missing, there = open_distinct_meters([cuda("GPU-ffff", 0), cuda("GPU-bbbb", 1)])
    assert (missing.device.uuid, missing.device.method) == ("GPU-ffff", None)
    assert "the driver lists: GPU-bbbb (1 more don't answer)" in (missing.device.reason or "")
    assert missing.read_state().reasons == (missing.device.reason,)
    assert there.read_power().power_mw == 100_000
    there.close()


def test_a_request_that_is_wrong_closes_what_was_opened_before_it(load: Load) -> None:
    load(StubScript(boards=(B,)))  # its teardown fails if a meter was left open
    with pytest.raises(ValueError, match="UUID alone"):
        open_distinct_meters([cuda("GPU-bbbb", 0), MeterRequest("cuda")])


def test_processors_of_a_host_are_one_device_for_all_ranks_where_rapl_can_be_read(tmp_path: Path) -> None:
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    for name, text in (("name", "package-0"), ("energy_uj", "7"), ("max_energy_range_uj", "1000000000000")):
        (zone / name).write_text(text)
    (meter,) = open_distinct_meters([MeterRequest("cpu", rank=n, powercap=tmp_path) for n in range(4)])
    assert (meter.device.uuid, meter.device.scope) == ("cpu-packages", "package")
    meter.close()


def test_why_there_is_no_rapl_is_said_once_however_many_ranks_ask(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    meters = open_distinct_meters([MeterRequest("cpu", rank=n, powercap=tmp_path) for n in range(4)])
    assert [meter.device.uuid for meter in meters] == [f"process-rank-{n}" for n in range(4)]
    assert all("no package domain" in (meter.device.reason or "") for meter in meters)
    assert caplog.text.count("can't be measured") == 1


def test_a_request_travels_to_the_sampler_and_asks_for_power_of_the_ranks_process() -> None:
    request = MeterRequest("cpu", rank=3, host="host")
    outside = pickle.loads(pickle.dumps(request.from_outside(4711)))
    assert (outside.rank, outside.pid, outside.power_only) == (3, 4711, True)
    with open_meter(MeterRequest("cpu", pid=1, cpu_method="estimate")) as meter:
        assert meter.device.uuid == "process-1"


def test_the_processors_model_is_read_or_falls_back(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: AMD EPYC 9654 96-Core Processor\n")
    assert processor_name(cpuinfo) == "AMD EPYC 9654 96-Core Processor"
    assert processor_name(tmp_path / "nothing")
