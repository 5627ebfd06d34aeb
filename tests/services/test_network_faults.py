"""The network between jobs and the service: cut, and losing answers so that all is sent twice."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from services.states import ExperimentState
from tests.services.cut_network import CutNetwork
from tests.services.fake_job import Behaviour
from tests.services.fault_bench import SUCCEEDED, FaultBench, faults

CUT_S = 5.0

pytestmark = pytest.mark.timeout(900)  # services are started several times, on machines that may be busy


@pytest.fixture
def bench(tmp_path: Path, database_url: str) -> Iterator[FaultBench]:
    with faults(tmp_path, database_url, Behaviour(pause_s=0.02)) as bench:
        yield bench


def test_what_a_job_says_while_the_network_is_cut_lands_when_it_is_mended(bench: FaultBench) -> None:
    with CutNetwork(bench.port_of("a")) as network:
        bench.service_url = network.url
        bench.start()
        with ExitStack() as cut:
            with bench.head.held("running"):
                ids = [bench.submit() for _ in range(2)]
                for identifier in ids:
                    bench.wait_for_state(identifier, ExperimentState.RUNNING)
                before = bench.all_landed(ids)
                cut.enter_context(network.cut())
            time.sleep(CUT_S)
            assert sum(map(bench.landed, ids)) == before
            assert [bench.state(identifier) for identifier in ids] == ["running"] * 2
        assert bench.settled(ids) == [SUCCEEDED] * 2
        assert sorted(bench.started()) == sorted(ids)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_minute_without_a_network_costs_nothing(bench: FaultBench) -> None:
    """With the deadlines of every day; above they are as short as the cut."""
    with CutNetwork(bench.port_of("a")) as network:
        bench.service_url = network.url
        bench.start(GHOSTWATT_SILENCE_DEADLINE_S="180", GHOSTWATT_LEASE_TTL_S="30")
        with ExitStack() as cut:
            with bench.head.held("running"):
                identifier = bench.submit()
                bench.wait_for_state(identifier, ExperimentState.RUNNING)
                cut.enter_context(network.cut())
            time.sleep(60)
            assert bench.state(identifier) == "running"
        assert bench.settled([identifier]) == [SUCCEEDED]
        assert bench.started() == [identifier]


def test_events_whose_answer_is_lost_are_sent_again_and_land_once(bench: FaultBench) -> None:
    with CutNetwork(bench.port_of("a")) as network:
        bench.service_url = network.url
        bench.start()
        with ExitStack() as losing:
            with bench.head.held("running"):
                identifier = bench.submit()
                bench.wait_for_state(identifier, ExperimentState.RUNNING)
                losing.enter_context(network.losing_answers())
            bench.wait_until(lambda: network.lost_answers > 3, "answers that are lost")
        assert bench.settled([identifier]) == [SUCCEEDED]


def test_a_job_that_never_gets_its_assignment_is_ended_at_its_deadline(bench: FaultBench) -> None:
    with CutNetwork(bench.port_of("a")) as network:
        bench.service_url = network.url
        bench.start()
        with network.cut():
            identifier = bench.submit(resources={"scheduling_deadline_s": 3})
            assert bench.settled([identifier]) == [("failed", "service_unreached")]
            assert bench.started() == [identifier] * 2
