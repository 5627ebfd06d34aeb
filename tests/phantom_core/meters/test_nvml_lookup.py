from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from phantom_core.meters.base import DeviceNotFound, MeterUnavailable
from phantom_core.meters.nvml_library import NvmlSession
from phantom_core.meters.nvml_lookup import BoardEntry, FoundBoard, find_board, list_boards
from tests.nvml_stub.harness import LIB_RM_VERSION_MISMATCH, LoadedStub, StubBoard, StubScript

A = "GPU-aaaa1111-0000-0000-0000-000000000000"
B = "GPU-aaaa2222-0000-0000-0000-000000000000"
C = "GPU-cccc3333-0000-0000-0000-000000000000"
SLICES = ("MIG-5555eeee-0000-0000-0000-000000000000", "MIG-5555ffff-0000-0000-0000-000000000000")

Load = Callable[[StubScript], LoadedStub]


@contextmanager
def opened() -> Iterator[NvmlSession]:
    session = NvmlSession()
    session.open()
    try:
        yield session
    finally:
        session.close()


def three_boards() -> StubScript:
    return StubScript(boards=(StubBoard(uuid=C, slices=SLICES), StubBoard(uuid=A), StubBoard(uuid=B)))


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (A, FoundBoard(A, None)),
        (A.upper().replace("GPU-", "GPU-"), FoundBoard(A, None)),
        (A.removeprefix("GPU-"), FoundBoard(A, None)),
        (f" {A} ", FoundBoard(A, None)),
        ("GPU-aaaa1", FoundBoard(A, None)),
        ("GPU-c", FoundBoard(C, None, divided=True)),
        ("cccc", FoundBoard(C, None, divided=True)),
        (SLICES[1], FoundBoard(C, SLICES[1], divided=True)),
        (SLICES[1].removeprefix("MIG-"), FoundBoard(C, SLICES[1], divided=True)),
        ("MIG-5555e", FoundBoard(C, SLICES[0], divided=True)),
        (f"MIG-{C}/3/0", FoundBoard(C, f"MIG-{C}/3/0", divided=True)),
    ],
)
def test_a_board_is_found_by_any_form_of_its_uuid_in_any_order_of_the_driver(
    load: Load, asked: str, found: FoundBoard
) -> None:
    load(three_boards())
    with opened() as session:
        assert find_board(session, asked) == found


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("GPU-aaaa", "means 2 devices"),
        ("GPU-", "means 3 devices"),
        ("MIG-5555", "means 2 devices"),
        ("GPU-dddd", "is no device"),
        ("", "is no device"),
        ("0", "is no device"),
        ("MIG-GPU-dddd/1/0", "is no device"),
    ],
)
def test_a_uuid_that_means_no_board_or_several_is_refused_with_what_there_is(
    load: Load, asked: str, words: str
) -> None:
    load(three_boards())
    with opened() as session, pytest.raises(DeviceNotFound, match=words) as refused:
        find_board(session, asked)
    assert all(uuid in str(refused.value) for uuid in (A, B, C, *SLICES))


def test_a_uuid_that_is_the_beginning_of_another_means_itself(load: Load) -> None:
    load(StubScript(boards=(StubBoard(uuid="GPU-12"), StubBoard(uuid="GPU-123"))))
    with opened() as session:
        assert find_board(session, "GPU-12") == FoundBoard("GPU-12", None)


def test_boards_are_listed_with_their_slices_and_without_those_that_are_lost(load: Load) -> None:
    load(
        StubScript(
            boards=(
                StubBoard(uuid=A, lost=(-1, 99)),
                StubBoard(uuid=C, name="NVIDIA H100 PCIe", slices=SLICES),
            )
        )
    )
    assert list_boards() == (BoardEntry(1, C, "NVIDIA H100 PCIe", 150_000_000_000, SLICES),)


def test_a_driver_that_does_not_fit_its_library_says_what_to_do(load: Load) -> None:
    load(StubScript(init_code=LIB_RM_VERSION_MISMATCH))
    with pytest.raises(MeterUnavailable, match="reboot"):
        list_boards()
