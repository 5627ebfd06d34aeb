"""Two services share one database, and one of them is always about to be killed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.services.fake_job import Behaviour
from tests.services.fault_bench import SUCCEEDED, FaultBench, faults, small

KILLS = ("a", "b", "a", "b")
CALLERS = 16

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
    assert sorted(bench.started()) == sorted(ids), "each was started once"


def test_one_idempotency_key_at_two_services_at_once_makes_one_experiment(bench: FaultBench) -> None:
    """Half of the callers send another payload with the same key: theirs is refused, by whichever process."""
    services = [bench.start(name) for name in "ab"]
    specs = [small(name=name).model_dump(mode="json", exclude_unset=True) for name in ("one", "other")]

    def send(number: int) -> tuple[int, int, str]:
        payload = number % 4 // 2
        response = httpx.post(
            f"{services[number % 2].url}/v1/experiments",
            json=specs[payload],
            headers={"Idempotency-Key": "the-same"},
            timeout=120,
        )
        return payload, response.status_code, str(response.json().get("id", response.json().get("code")))

    with ThreadPoolExecutor(CALLERS) as pool:
        answers = list(pool.map(send, range(CALLERS)))
    accepted = {(payload, told) for payload, status, told in answers if status == 202}
    assert len(accepted) == 1, "one payload was first, and one experiment made of it"
    ((winner, identifier),) = accepted
    for payload, status, told in answers:
        refusals = {(409, "request-in-flight")} | (
            set() if payload == winner else {(422, "idempotency-conflict")}
        )
        assert (status, told) in refusals | ({(202, identifier)} if payload == winner else set())
    assert bench.settled([identifier]) == [SUCCEEDED]
    assert [item["id"] for item in services[0].get("/v1/experiments")["items"]] == [identifier]


def _somebody_holds(bench: FaultBench, identifier: str) -> bool:
    return bench.state(identifier) != "queued"
