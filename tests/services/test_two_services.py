"""Two services share one database, and one of them is always about to be killed."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.services.fake_job import Behaviour
from tests.services.fault_bench import SUCCEEDED, FaultBench, faults

KILLS = ("a", "b", "a", "b")

pytestmark = pytest.mark.timeout(900)  # services are started several times, on machines that may be busy


@pytest.fixture
def bench(tmp_path: Path, database_url: str) -> Iterator[FaultBench]:
    with faults(tmp_path, database_url, Behaviour(pause_s=0.02)) as bench:
        yield bench


def test_two_services_killed_in_turn_lose_and_repeat_nothing(bench: FaultBench) -> None:
    """Jobs report to one of the two, whichever of them follows the job."""
    bench.service_url = f"http://127.0.0.1:{bench.port_of('a')}"
    for name in "ab":
        bench.start(name)
    ids: list[str] = []
    for victim in KILLS:
        survivor = "b" if victim == "a" else "a"
        ids += [bench.submit(name) for name in (victim, survivor)]
        bench.wait_until(partial(_somebody_holds, bench, ids[-1]), "a dispatcher for the last one")
        bench.kill(victim)
        ids.append(bench.submit(survivor))
        bench.start(victim)
    assert bench.settled(ids) == [SUCCEEDED] * len(ids)
    assert sorted(bench.head.told()["submissions"]) == sorted(ids), "each was started once"


def _somebody_holds(bench: FaultBench, identifier: str) -> bool:
    return bench.state(identifier) != "queued"
