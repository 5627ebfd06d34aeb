"""Limits on a board's clocks through the unmodified binding: who tells them, and what is said where nobody does."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from phantom_core.board_limits import BoardLimits
from phantom_core.flags import Flag
from phantom_core.meters.company import OwnProcesses, state_flags
from phantom_core.meters.nvml_library import NvmlSession
from phantom_core.meters.nvml_lookup import find_board
from phantom_core.meters.nvml_meter import NvmlMeter
from phantom_core.protocol import BoardState, DeviceInfo
from tests.nvml_stub.harness import (
    ALWAYS,
    DEPRECATED,
    FUNCTION_NOT_FOUND,
    NO_PERMISSION,
    NOT_SUPPORTED,
    TIMEOUT,
    Failure,
    LoadedStub,
    StubBoard,
    StubScript,
)

Load = Callable[[StubScript], LoadedStub]
SET = ((0, 1410, ALWAYS), (2, 1593, ALWAYS))
ALLOWED = ((0, 1980), (2, 2619))
APPLICATIONS, TARGET, BOOST = (
    "nvmlDeviceGetApplicationsClock",
    "nvmlDeviceGetClock",
    "nvmlDeviceGetMaxCustomerBoostClock",
)


@contextmanager
def metered(stub: LoadedStub, board: StubBoard) -> Iterator[NvmlMeter]:
    session = NvmlSession(stub.clock.monotonic)
    session.open()
    found = find_board(session, board.uuid)
    with NvmlMeter(session, found, "host", "gpu", stub.clock.monotonic, stub.clock.sleep) as meter:
        yield meter


def limits(told: DeviceInfo | BoardState) -> tuple[float | None, float | None]:
    return told.clock_limit_mhz, told.memory_clock_limit_mhz


@pytest.mark.parametrize("code", [NOT_SUPPORTED, DEPRECATED, FUNCTION_NOT_FOUND, NO_PERMISSION])
@pytest.mark.parametrize(
    ("silent", "expected"),
    [
        ((), (1410, 1593)),
        ((APPLICATIONS,), (1410, 1593)),
        ((APPLICATIONS, TARGET), (1980, 2619)),
        ((BOOST,), (1410, 1593)),
        ((APPLICATIONS, TARGET, BOOST), (None, None)),
    ],
)
def test_limits_on_clocks_are_what_was_set_or_what_the_maker_allows_or_unknown(
    load: Load, silent: tuple[str, ...], code: int, expected: tuple[float | None, float | None]
) -> None:
    failures = tuple(Failure(function, code) for function in silent)
    board = StubBoard(clock_limits=SET, max_boosts=ALLOWED, failures=failures)
    with metered(load(StubScript(boards=(board,))), board) as meter:
        device, state = meter.device, meter.read_state()
    assert limits(device) == limits(state) == expected
    is_unknown = expected == (None, None)
    for words in (device.reason or "", " ".join(state.reasons)):
        for function in (APPLICATIONS, TARGET, BOOST):
            assert (function in words) == is_unknown, words
        assert ("memory clock limit" in words) == is_unknown


def test_one_clock_s_limit_can_be_known_without_the_other_s(load: Load) -> None:
    board = StubBoard(clock_limits=((0, 1410, ALWAYS),), max_boosts=())
    with metered(load(StubScript(boards=(board,))), board) as meter:
        device = meter.device
    assert limits(device) == (1410, None)
    assert "no memory clock limit is told" in (device.reason or "")
    assert "no clock limit is told" not in (device.reason or "")


def test_a_limit_of_zero_is_none_that_is_known(load: Load) -> None:
    board = StubBoard(clock_limits=((0, 0, ALWAYS), (2, 0, ALWAYS)), max_boosts=((0, 1980),))
    with metered(load(StubScript(boards=(board,))), board) as meter:
        device = meter.device
    assert limits(device) == (1980, None)
    assert "no limit is told (0 MHz)" in (device.reason or "")


def test_boards_have_limits_of_their_own(load: Load) -> None:
    slow = StubBoard(uuid="GPU-slow", clock_limits=SET)
    fast = StubBoard(uuid="GPU-fast", clock_limits=((0, 1980, ALWAYS), (2, 2619, ALWAYS)))
    stub = load(StubScript(boards=(slow, fast)))
    with metered(stub, slow) as one, metered(stub, fast) as other:
        assert (limits(one.device), limits(other.device)) == ((1410, 1593), (1980, 2619))


def test_a_limit_on_clocks_that_is_set_in_mid_run_is_seen(load: Load) -> None:
    set_at_10_s = ((0, 1980, (-1e9, 10)), (0, 1965, (10, 1e9)), (2, 2619, ALWAYS))
    board = StubBoard(clock_limits=set_at_10_s)
    stub = load(StubScript(boards=(board,)))
    with metered(stub, board) as meter:
        device = meter.device
        stub.clock.set(5.0)
        before = meter.read_state()
        stub.clock.set(15.0)
        after = meter.read_state()
    opened = BoardLimits(device.power_limit_mw, device.clock_limit_mhz, device.memory_clock_limit_mhz)
    nobody = OwnProcesses.of([])
    assert state_flags([before], nobody, opened) == ()
    assert state_flags([before, after], nobody, opened) == (Flag.CLOCKS_DIFFER,)


def test_a_limit_that_can_not_be_read_for_a_while_is_unknown_and_no_other_limit_stands_for_it(
    load: Load,
) -> None:
    failures = (
        Failure(APPLICATIONS, TIMEOUT, (10, 20)),
        Failure(APPLICATIONS, NO_PERMISSION, (20, 30)),
    )
    board = StubBoard(clock_limits=SET, max_boosts=ALLOWED, failures=failures)
    stub = load(StubScript(boards=(board,)))
    seen = []
    with metered(stub, board) as meter:
        for seconds in (5.0, 15.0, 25.0, 35.0):
            stub.clock.set(seconds)
            seen.append(meter.read_state())
    assert [limits(state) for state in seen] == [(1410, 1593), (None, None), (None, None), (1410, 1593)]
    assert "Timeout" in " ".join(seen[1].reasons)
    assert "not permitted" in " ".join(seen[2].reasons)


def test_what_tells_no_limit_is_not_asked_again(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    """The sampler reads states once a second on every board."""
    caplog.set_level(logging.INFO)
    failures = tuple(Failure(function, DEPRECATED) for function in (APPLICATIONS, TARGET))
    boards = (
        StubBoard(uuid="GPU-1", clock_limits=SET, max_boosts=ALLOWED, failures=failures),
        StubBoard(uuid="GPU-2", clock_limits=(), max_boosts=()),
    )
    stub = load(StubScript(boards=boards))
    with metered(stub, boards[0]) as boosted, metered(stub, boards[1]) as silent:
        asked = {function: stub.calls(function) for function in (APPLICATIONS, TARGET, BOOST)}
        for _ in range(10):
            boosted.read_state()
            silent.read_state()
        more = {function: stub.calls(function) - count for function, count in asked.items()}
    assert more == {APPLICATIONS: 0, TARGET: 0, BOOST: 20}
    lacks = [each.getMessage() for each in caplog.records if "lacks: " in each.getMessage()]
    assert ["memory clock limit" in each for each in lacks] == [False, True]
