import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import psutil
import pytest

from phantom_core.flags import Flag
from phantom_core.meters.choose import MeterRequest, open_meter
from phantom_core.meters.company import (
    FIRST_PID_NAMESPACE,
    OwnProcesses,
    board_shared,
    driver_process_id,
)
from phantom_core.meters.idle import idle_power
from phantom_core.meters.nvml_library import NvmlSession
from phantom_core.meters.nvml_lookup import find_board
from phantom_core.meters.nvml_meter import NvmlMeter
from phantom_core.meters.rapl import RaplMeter
from tests.nvml_stub.harness import (
    ALWAYS,
    NO_PERMISSION,
    NOT_SUPPORTED,
    Clock,
    Failure,
    LoadedStub,
    StubBoard,
    StubScript,
)

Load = Callable[[StubScript], LoadedStub]


@contextmanager
def metered(stub: LoadedStub, uuid: str) -> Iterator[NvmlMeter]:
    session = NvmlSession(stub.clock.monotonic)
    session.open()
    found = find_board(session, uuid)
    with NvmlMeter(session, found, "host", monotonic=stub.clock.monotonic, sleep=stub.clock.sleep) as meter:
        yield meter


def test_idle_power_of_each_device_with_its_bound(load: Load) -> None:
    boards = (StubBoard(uuid="GPU-1", power=((0, 75),)), StubBoard(uuid="GPU-2", power=((0, 120),)))
    stub = load(StubScript(boards=boards))
    with metered(stub, "GPU-1") as one, metered(stub, "GPU-2") as two:
        results = idle_power([one, two], 2.0, stub.clock.sleep, monotonic=stub.clock.monotonic)
    for result, watts in zip(results, (75, 120), strict=True):
        assert result.power_mw is not None
        assert result.uncertainty_mw is not None
        assert abs(result.power_mw - 1_000 * watts) <= result.uncertainty_mw
        assert result.uncertainty_mw < 0.1 * 1_000 * watts, "the limit of 700 W must not make the bound"
        assert result.duration_s == pytest.approx(2.0, abs=0.01)
        assert result.energy.flags == ()
        assert result.reason is None


def test_a_board_that_works_is_no_idle_baseline(load: Load) -> None:
    stub = load(StubScript(boards=(StubBoard(utilizations=((80, (1.5, 99.0)),)),)))
    with metered(stub, StubBoard().uuid) as meter:
        (result,) = idle_power([meter], 2.0, stub.clock.sleep, monotonic=stub.clock.monotonic)
    assert result.power_mw is not None
    assert result.energy.flags == (Flag.NOT_IDLE_BASELINE,)
    assert result.reason == "the board was 80 % busy"


def test_work_that_ended_just_before_does_not_count_as_busy(load: Load) -> None:
    stub = load(StubScript(boards=(StubBoard(utilizations=((80, (0.0, 1.0)),)),)))
    with metered(stub, StubBoard().uuid) as meter:
        (result,) = idle_power([meter], 2.0, stub.clock.sleep, monotonic=stub.clock.monotonic)
    assert result.energy.flags == ()


def test_a_stranger_on_the_board_is_said_and_the_idle_ranks_are_not_strangers(load: Load) -> None:
    stub = load(StubScript(boards=(StubBoard(processes=((100, ALWAYS), (200, ALWAYS))),)))
    with metered(stub, StubBoard().uuid) as meter:
        (shared,) = idle_power(
            [meter], 1.0, stub.clock.sleep, own=OwnProcesses.of([100]), monotonic=stub.clock.monotonic
        )
        (alone,) = idle_power(
            [meter], 1.0, stub.clock.sleep, own=OwnProcesses.of([100, 200]), monotonic=stub.clock.monotonic
        )
    assert shared.energy.flags == (Flag.NOT_IDLE_BASELINE, Flag.BOARD_SHARED)
    assert alone.energy.flags == ()


NO_LIST = tuple(Failure(f"nvmlDeviceGetComputeRunningProcesses_v{n}", NO_PERMISSION) for n in (2, 3))
NO_UTILIZATION = Failure("nvmlDeviceGetUtilizationRates", NOT_SUPPORTED)
IN_CONTAINER = OwnProcesses.of([None])


@pytest.mark.parametrize(
    ("board", "own", "flags", "words"),
    [
        # The list is hidden: utilisation alone shows that the board idled, and who was there is said to be unknown.
        (StubBoard(failures=NO_LIST), IN_CONTAINER, (Flag.COMPANY_UNKNOWN,), "not permitted to this user"),
        (StubBoard(failures=NO_LIST), OwnProcesses.of([100]), (Flag.COMPANY_UNKNOWN,), "not permitted"),
        (StubBoard(), IN_CONTAINER, (Flag.COMPANY_UNKNOWN,), "lacks our own ranks"),
        # It numbers as the host does, in a container that can't: as many as our ranks are our ranks.
        (StubBoard(processes=((7001, ALWAYS),)), IN_CONTAINER, (), None),
        (
            StubBoard(processes=((7001, ALWAYS), (7002, ALWAYS))),
            IN_CONTAINER,
            (Flag.NOT_IDLE_BASELINE, Flag.BOARD_SHARED),
            "processes [7001, 7002] are on the board",
        ),
        # A divided board has no utilisation: a list with none but our own, which idle, shows as much.
        (StubBoard(failures=(NO_UTILIZATION,), processes=((100, ALWAYS),)), OwnProcesses.of([100]), (), None),
        # Neither: nothing shows that the board idled.
        (
            StubBoard(failures=(NO_UTILIZATION, *NO_LIST)),
            IN_CONTAINER,
            (Flag.NOT_IDLE_BASELINE, Flag.COMPANY_UNKNOWN),
            "nor how busy it was",
        ),
        # Busy is busy, whoever it was.
        (
            StubBoard(failures=NO_LIST, utilizations=((80, ALWAYS),)),
            IN_CONTAINER,
            (Flag.NOT_IDLE_BASELINE,),
            "the board was 80 % busy",
        ),
    ],
)
def test_what_can_not_be_looked_at_is_said_and_a_baseline_that_nothing_shows_to_be_idle_is_flagged(
    load: Load, board: StubBoard, own: OwnProcesses, flags: tuple[Flag, ...], words: str | None
) -> None:
    stub = load(StubScript(boards=(board,)))
    with metered(stub, board.uuid) as meter:
        (result,) = idle_power([meter], 1.0, stub.clock.sleep, own=own, monotonic=stub.clock.monotonic)
    assert result.power_mw is not None, "a figure that is known is kept, with what must be said of it"
    assert result.energy.flags == flags
    assert (result.reason is None) if words is None else (words in (result.reason or ""))


def test_a_device_that_can_not_be_read_has_no_idle_power_and_says_why() -> None:
    clock = Clock()
    with open_meter(MeterRequest("rocm", uuid="GPU-1")) as meter:
        (result,) = idle_power([meter], 1.0, clock.sleep, monotonic=clock.monotonic)
    assert result.power_mw is None
    assert result.uncertainty_mw is None
    assert "amdsmi" in (result.reason or "")
    assert Flag.ENERGY_UNKNOWN in result.energy.flags


def test_busy_processors_are_no_idle_baseline_of_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    for name, text in (("name", "package-0"), ("energy_uj", "0"), ("max_energy_range_uj", "1000000000000")):
        (zone / name).write_text(text)
    monkeypatch.setattr(psutil, "cpu_percent", lambda: 63.0)
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        counter = zone / "energy_uj"
        counter.write_text(str(int(counter.read_text()) + 5_000))

    with RaplMeter("host", "EPYC", tmp_path, clock.monotonic) as meter:
        (result,) = idle_power([meter], 0.5, sleep, monotonic=clock.monotonic)
    assert Flag.NOT_IDLE_BASELINE in result.energy.flags
    assert result.reason == "the host's processors were 63 % busy"


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_baseline_without_duration_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="positive duration"):
        idle_power([], seconds)


@pytest.mark.parametrize(
    ("on_board", "ours", "shared"),
    [
        # Numbered alike: whoever isn't ours is company, and a list without us shows nothing.
        (None, [1], None),
        ([1], [1], False),
        ([1, 2], [1], True),
        ([1, 2], [1, 2], False),
        ([2], [1], True),
        ([], [1], None),
        ([1], [1, 2], None),
        ([5], [], True),
        ([], [], False),
        # In a container: only the number of processes says something.
        (None, [None], None),
        ([7001], [None], False),
        ([7001, 7002], [None], True),
        ([7001, 7002], [None, None], False),
        ([7001], [None, None], None),
        ([], [None], None),
        # One rank that doesn't know its number, and by chance another's number on the list.
        ([17, 7002], [17, None], False),
        ([17, 7002, 7003], [17, None], True),
    ],
)
def test_company_is_told_without_false_alarms_and_never_denied_without_grounds(
    on_board: list[int] | None, ours: list[int | None], shared: bool | None
) -> None:
    assert board_shared(on_board, OwnProcesses.of(ours)) is shared


def test_a_process_tells_its_number_only_in_the_host_s_own_namespace(tmp_path: Path) -> None:
    first = mock.Mock(spec=Path)
    first.stat.return_value = mock.Mock(st_ino=FIRST_PID_NAMESPACE)
    assert driver_process_id(first) == os.getpid()
    first.stat.return_value = mock.Mock(st_ino=FIRST_PID_NAMESPACE + 17)
    assert driver_process_id(first) is None
    assert driver_process_id(tmp_path / "no proc here") is None
