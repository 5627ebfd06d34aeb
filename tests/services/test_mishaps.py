import itertools
import logging
from collections.abc import Callable

import pytest

from services.mishaps import LONGEST_PAUSE_S, MOST_PARTS, Mishaps
from services.ray_requests import ClusterUnreachable


class Work:
    """Does what it is told to, and counts how often it was tried."""

    def __init__(self) -> None:
        self.tries = 0
        self.raises: Callable[[], Exception] | None = None

    def __call__(self) -> str:
        self.tries += 1
        if self.raises is not None:
            raise self.raises()
        return "done"


class Bench:
    def __init__(self) -> None:
        self.clock_s = 0.0
        self.mishaps = Mishaps(lambda: self.clock_s)
        self.work = Work()

    def attempt(self) -> str:
        return self.mishaps.attempt("a part", self.work, "not now")


@pytest.fixture
def bench() -> Bench:
    return Bench()


def broken() -> Exception:
    return TypeError("a secret of the database's")


def away() -> Exception:
    return ClusterUnreachable("nobody answers")


def test_an_unexpected_failure_is_tried_again_more_and_more_rarely(bench: Bench) -> None:
    bench.work.raises = broken
    tried_at_s = []
    for second in range(600):
        bench.clock_s = second
        before = bench.work.tries
        assert bench.attempt() == "not now"
        if bench.work.tries > before:
            tried_at_s.append(second)
    gaps_s = [after - before for before, after in itertools.pairwise(tried_at_s)]
    assert gaps_s[:6] == [1, 2, 4, 8, 16, 32]
    assert set(gaps_s[6:]) == {LONGEST_PAUSE_S}


def test_an_expected_one_is_tried_again_at_once_and_is_no_trouble(bench: Bench) -> None:
    bench.work.raises = away
    for _ in range(5):
        assert bench.attempt() == "not now"
    assert bench.work.tries == 5
    assert bench.mishaps.told() is None
    assert bench.mishaps.failing_s("a part") == 0


def test_each_kind_is_logged_once_until_it_works_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def logged() -> list[tuple[int, bool]]:
        found = [(record.levelno, record.exc_info is not None) for record in caplog.records]
        caplog.clear()
        return found

    for raises in (away, broken, away, broken, broken):
        bench.work.raises = raises
        bench.attempt()
        bench.clock_s += LONGEST_PAUSE_S
    assert logged() == [(logging.WARNING, False), (logging.ERROR, True)]
    bench.work.raises = None
    with caplog.at_level(logging.INFO):
        assert bench.attempt() == "done"
    assert logged() == [(logging.INFO, False)]
    bench.work.raises = broken
    bench.attempt()
    assert logged() == [(logging.ERROR, True)]


def test_what_fails_is_told_without_what_the_error_says(bench: Bench) -> None:
    bench.work.raises = broken
    bench.attempt()
    bench.clock_s = 12
    assert bench.mishaps.failing_s("a part") == 12
    assert bench.mishaps.error_of("a part") == "TypeError"
    told = bench.mishaps.told()
    assert told is not None
    assert "a part (TypeError)" in told
    assert "secret" not in told
    bench.work.raises = None
    bench.attempt()
    assert bench.mishaps.told() is None
    assert bench.mishaps.failing_s("a part") == 0


def test_parts_that_are_never_tried_again_do_not_add_up(bench: Bench) -> None:
    bench.work.raises = broken
    for number in range(MOST_PARTS + 10):
        bench.mishaps.attempt(f"part {number}", bench.work, "not now")
    assert bench.mishaps.failing_s("part 0") == 0
    told = bench.mishaps.told()
    assert told is not None
    assert len(told) < 500
