"""The service is killed at every point of an experiment's life, and started again: the experiment succeeds."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from client import GhostwattClient
from client.errors import ServiceUnreachable
from client.models import Occurrence
from services.states import ExperimentState
from tests.services.fake_job import Behaviour
from tests.services.fault_bench import SUCCEEDED, FaultBench, faults

WATCHERS = 3

pytestmark = pytest.mark.timeout(900)  # services are started several times, on machines that may be busy


@pytest.fixture
def bench(tmp_path: Path, database_url: str) -> Iterator[FaultBench]:
    with faults(tmp_path, database_url, Behaviour(pause_s=0.02)) as bench:
        yield bench


def test_killed_while_experiments_are_queued(bench: FaultBench) -> None:
    bench.start(GHOSTWATT_RAY_MAX_ACTIVE="1")
    with bench.head.held("begin"):
        ids = [bench.submit() for _ in range(3)]
        bench.wait_for_state(ids[0], ExperimentState.STARTING)
        bench.kill()
    bench.start()
    assert bench.settled(ids) == [SUCCEEDED] * 3
    assert bench.started() == ids


@pytest.mark.parametrize("submit_first", [True, False])
def test_killed_while_it_hands_the_job_over(bench: FaultBench, submit_first: bool) -> None:
    """The submission is under way: Ray carries it out before the service dies, or when another is there already."""
    bench.start()
    bench.head.control(slow_s=5, submit_first=submit_first)
    identifier = bench.submit()
    bench.wait_until(lambda: bench.attempt(identifier) == 1, "a submission under way")
    bench.kill()
    bench.head.control(slow_s=0)
    bench.start()
    assert bench.settled([identifier]) == [SUCCEEDED]


def test_killed_while_the_job_starts(bench: FaultBench) -> None:
    bench.start()
    with bench.head.held("begin"):
        identifier = bench.submit()
        bench.wait_for_state(identifier, ExperimentState.STARTING)
        bench.kill()
    bench.start()
    assert bench.settled([identifier]) == [SUCCEEDED]
    assert bench.started() == [identifier]


def test_killed_while_the_job_runs_and_ends(bench: FaultBench) -> None:
    """Once while its ranks work, and once more before its last word: the same start of the job goes on."""
    bench.start()
    with bench.head.held("finishing"):
        with bench.head.held("running"):
            identifier = bench.submit()
            bench.wait_for_state(identifier, ExperimentState.RUNNING)
            bench.kill()
        bench.start()
        bench.wait_until(lambda: bench.landed(identifier) > 10, "events after the first death")
        bench.kill()
    bench.start()
    assert bench.settled([identifier]) == [SUCCEEDED]
    assert bench.started() == [identifier]


def test_killed_again_and_again_while_it_ingests(bench: FaultBench) -> None:
    bench.start()
    ids = [bench.submit() for _ in range(3)]
    for so_far in (5, 25):
        bench.wait_until(partial(_landed_more_than, bench, ids, so_far), "some events")
        bench.kill()
        bench.start()
    assert bench.settled(ids) == [SUCCEEDED] * 3
    assert sorted(bench.started()) == sorted(ids)


def test_killed_with_a_cancel_on_its_way(bench: FaultBench) -> None:
    service = bench.start()
    with bench.head.held("running"):
        identifier = bench.submit()
        bench.wait_for_state(identifier, ExperimentState.RUNNING)
        bench.head.control(status=500)
        service.post(f"/v1/experiments/{identifier}/cancel")
        bench.kill()
        bench.head.control(status=200)
        bench.start()
        assert bench.settled([identifier]) == [("cancelled", "cancelled_by_user")]


def test_who_watches_a_service_that_is_killed_misses_nothing_and_sees_nothing_twice(
    bench: FaultBench,
) -> None:
    """Each takes its stream up again after the last thing that it saw, at a process that never knew it."""
    url = bench.start().url
    with ThreadPoolExecutor(WATCHERS) as pool:
        with bench.head.held("finishing"):
            with bench.head.held("running"):
                identifier = bench.submit()
                bench.wait_for_state(identifier, ExperimentState.RUNNING)
            seen: list[list[Occurrence]] = [[] for _ in range(WATCHERS)]
            watchers = [pool.submit(_watch, url, identifier, each) for each in seen]
            for so_far in (2, 5):
                bench.wait_until(partial(_have_seen_more_than, seen, so_far), "watchers who saw something")
                bench.kill()
                bench.start()
        assert bench.settled([identifier]) == [SUCCEEDED]
        breaks = [watcher.result(timeout=120) for watcher in watchers]
    with GhostwattClient(url) as client:
        whole = list(client.events(identifier))
    assert whole[-1].is_last
    assert [each == whole for each in seen] == [True] * WATCHERS
    assert min(breaks) >= 2, "every stream broke off with each death"


def _watch(url: str, identifier: str, seen: list[Occurrence]) -> int:
    """Sees an experiment to its end over as many connections as it takes; how many broke off."""
    breaks = 0
    with GhostwattClient(url) as client:
        while not seen or not seen[-1].is_last:
            try:
                for each in client.events(identifier, after=seen[-1].id if seen else None):
                    seen.append(each)
            except ServiceUnreachable:
                breaks += 1
                time.sleep(0.1)
    return breaks


def _have_seen_more_than(seen: list[list[Occurrence]], number: int) -> bool:
    return min(map(len, seen)) > number


def _landed_more_than(bench: FaultBench, identifiers: list[str], number: int) -> bool:
    return sum(map(bench.landed, identifiers)) > number
