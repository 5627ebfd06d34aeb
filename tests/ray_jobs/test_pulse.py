"""Rank 0 gives signs of life while all ranks beat, and none when one has stopped."""

import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from torch._C._distributed_c10d import HashStore, TCPStore

from ray_jobs.pulse import Pulse

BEAT_S, SIGN_S = 0.01, 0.05
PATIENCE_S = 30.0
QUIET_S = 10 * SIGN_S


def eventually(look: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < end_s, "it never came"
        time.sleep(BEAT_S)


def falls_silent(signs: list[float]) -> None:
    """No sign for a while that would have held many."""
    eventually(lambda: time.monotonic() - signs[-1] > QUIET_S)


def pulses(count: int, signs: list[float]) -> list[Pulse]:
    store = HashStore()
    return [
        Pulse(store, rank, count, lambda: signs.append(time.monotonic()), beat_s=BEAT_S, sign_s=SIGN_S)
        for rank in range(count)
    ]


def test_signs_come_while_every_rank_beats_and_end_when_one_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    signs: list[float] = []
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(pulse) for pulse in pulses(3, signs))
        eventually(lambda: len(signs) >= 3)
        second.close()
        falls_silent(signs)
        assert "no sign of rank 1" in caplog.text
        third.close()
        first.close()


def test_no_sign_before_all_have_begun() -> None:
    signs: list[float] = []
    first, second = pulses(2, signs)
    with first:
        time.sleep(QUIET_S)
        assert signs == []
        with second:
            eventually(lambda: len(signs) >= 2)


def test_only_rank_0_speaks_and_nobody_after_the_end() -> None:
    signs: list[float] = []
    first, second = pulses(2, signs)
    with second:
        time.sleep(QUIET_S)
        assert signs == []
        with first:
            eventually(lambda: len(signs) >= 1)
        told = len(signs)
        time.sleep(QUIET_S)
        assert len(signs) == told


def test_a_store_that_is_gone_ends_the_thread() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    other = TCPStore("127.0.0.1", store.port, is_master=False)
    pulse = Pulse(other, 1, 2, lambda: None, beat_s=BEAT_S, sign_s=SIGN_S)
    with pulse:
        del store
        eventually(lambda: not pulse._thread.is_alive())
