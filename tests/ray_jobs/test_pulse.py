"""Rank 0 gives signs of life while all ranks beat and one gets on, and none when one has stopped or none gets on."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore, Store, TCPStore

from ray_jobs.headway import Headway
from ray_jobs.pulse import Pulse
from tests.running import wait_until

BEAT_S, SIGN_S = 0.01, 0.05
PATIENCE_S = 120.0
QUIET_S = 10 * SIGN_S


def eventually(look: Callable[[], bool]) -> None:
    wait_until(look, PATIENCE_S, "sign of that", every_s=BEAT_S)


def falls_silent(signs: list[float]) -> None:
    """No sign for a while that would have held many."""
    eventually(lambda: time.monotonic() - signs[-1] > QUIET_S)


def pulse(store: Store, rank: int, count: int, tell: Callable[[], object], **changes: Any) -> Pulse:
    told: dict[str, Any] = {
        "headway": Headway(),
        "tell_still": lambda _: None,
        "limit_s": 3_600,
        "beat_s": BEAT_S,
        "sign_s": SIGN_S,
    }
    return Pulse(store, rank, count, tell, **told | changes)


def pulses(count: int, signs: list[float]) -> list[Pulse]:
    store = HashStore()
    return [pulse(store, rank, count, lambda: signs.append(time.monotonic())) for rank in range(count)]


def test_signs_come_while_every_rank_beats_and_end_when_one_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    signs: list[float] = []
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(each) for each in pulses(3, signs))
        eventually(lambda: len(signs) >= 3)
        second.close()
        eventually(lambda: "no sign of rank 1" in caplog.text)
        falls_silent(signs)
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
    with pulse(other, 1, 2, lambda: None) as beating:
        del store
        eventually(lambda: not beating._thread.is_alive())


@dataclass
class Bench:
    """Two ranks whose headway the test makes."""

    signs: list[float] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    ends: list[None] = field(default_factory=list)
    ranks: tuple[Headway, Headway] = field(default_factory=lambda: (Headway(), Headway()))

    @contextmanager
    def beating(self, limit_s: float, grace_s: float = 3_600) -> Iterator[None]:
        store = HashStore()
        with ExitStack() as stack:
            for rank, headway in enumerate(self.ranks):
                changes = {"headway": headway, "limit_s": limit_s, "grace_s": grace_s}
                changes |= {"tell_still": self.said.append, "end_process": lambda: self.ends.append(None)}
                tell = partial(self._sign, rank)
                stack.enter_context(pulse(store, rank, 2, tell, **changes))
            yield

    def _sign(self, rank: int) -> None:
        assert rank == 0
        self.signs.append(time.monotonic())


def test_ranks_that_beat_and_do_not_get_on_are_told_of_once_with_where_each_is() -> None:
    bench = Bench()
    bench.ranks[0].about("tensor, round 2")
    bench.ranks[0].enter("the wait for all ranks after training window 3")
    bench.ranks[1].enter("saving step 100")
    with bench.beating(limit_s=5 * SIGN_S):
        eventually(lambda: bool(bench.said))
        assert bench.signs, "they gave signs until then"
        falls_silent(bench.signs)
    (said,) = bench.said
    assert "rank 0 in tensor, round 2: the wait for all ranks after training window 3" in said
    assert "rank 1 in saving step 100" in said
    assert "raise resources.progress_deadline_s" in said
    assert bench.ends == []


@pytest.mark.parametrize("way", ["things entered", "work given to the device"])
def test_one_rank_that_gets_on_is_enough_however_long_the_other_stays_where_it_is(way: str) -> None:
    bench = Bench()
    is_working, enqueued = threading.Event(), itertools.count()
    bench.ranks[1].watch(lambda: next(enqueued) if is_working.is_set() else 0)
    # Long beside any pause between two things entered.
    limit_s = 5.0 if way == "things entered" else 20 * SIGN_S
    with bench.beating(limit_s):
        if way == "work given to the device":
            is_working.set()
        end_s = time.monotonic() + 3 * limit_s
        while time.monotonic() < end_s:
            if way == "things entered":
                bench.ranks[1].enter("one window after the other")
            time.sleep(BEAT_S)
        assert bench.said == []
        is_working.clear()
        eventually(lambda: bool(bench.said))


def test_ranks_that_stand_still_and_are_ended_by_nobody_end_by_themselves() -> None:
    bench = Bench()
    with bench.beating(limit_s=SIGN_S, grace_s=SIGN_S):
        eventually(lambda: bool(bench.ends))
    assert len(bench.said) == 1
