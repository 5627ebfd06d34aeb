"""Points by the shortest way: as safe, and as exact, as the way of all events."""

import http.client
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import httpx
import pytest

from phantom_core.protocol import Alive, Event, EventBatch
from services import histories, ingest, keys, point_groups
from services.errors import DatabaseUnavailable
from services.known_jobs import KnownJobs
from tests.api.serving import Service, Start
from tests.services.simulated_job import SimulatedJob, Source, begun
from tests.services.test_point_writes import rows_of, told


@pytest.fixture
def job(service: Service) -> SimulatedJob:
    """A job under way."""
    return begun(service.database)[2]


@pytest.fixture
def token(service: Service, job: SimulatedJob) -> str:
    """Its token."""
    return token_of(service, job)


def token_of(service: Service, job: SimulatedJob) -> str:
    with service.database.write() as session:
        scopes = frozenset({keys.Scope.INGEST})
        return keys.add_key(session, "job", scopes, experiment_id=job.assignment.experiment_id).token


def post(service: Service, token: str, body: bytes, **headers: str) -> httpx.Response:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"} | headers
    return service.http.post("/internal/v1/events", content=body, headers=headers)


def body_of(job: SimulatedJob, events: list[Event]) -> bytes:
    return job.batch(events).model_dump_json().encode()


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[EventBatch]:
    """Batches that went the way of all events."""
    found: list[EventBatch] = []
    usual = ingest.ingest

    def noting(db: Any, batch: EventBatch) -> Any:
        found.append(batch)
        return usual(db, batch)

    monkeypatch.setattr(ingest, "ingest", noting)
    return found


def test_a_known_job_s_points_take_the_shortest_way(
    service: Service, job: SimulatedJob, token: str, ways: list[EventBatch]
) -> None:
    before = rows_of(service.database)
    events = told(job, 6)
    first = post(service, token, body_of(job, events[:2]))
    assert (first.json(), len(ways)) == ({"accepted": 2, "duplicates": 0, "rejected": {}}, 1)
    second = post(service, token, body_of(job, events[1:]))
    assert (second.json(), len(ways)) == ({"accepted": 4, "duplicates": 1, "rejected": {}}, 1)
    lines, blocks, points = rows_of(service.database)
    assert (lines - before[0], blocks - before[1], points - before[2]) == (6, 6, 12)


def test_other_events_and_long_batches_take_the_way_of_all(
    service: Service, job: SimulatedJob, token: str, ways: list[EventBatch]
) -> None:
    post(service, token, body_of(job, told(job, 1)))
    beat = Source("pulse").event(job.assignment.experiment_id, 1, job.at(), Alive(ranks=2))
    bodies = [
        body_of(job, [*told(job, 1, first=1), beat]),
        body_of(job, told(job, 1, first=2)) + b" " * 200_000,
    ]
    for number, body in enumerate(bodies):
        assert post(service, token, body).json()["accepted"] == 2 - number
        assert len(ways) == 2 + number


def test_a_length_told_with_many_zeros_is_no_shorter(
    service: Service, job: SimulatedJob, token: str, ways: list[EventBatch]
) -> None:
    post(service, token, body_of(job, told(job, 1)))
    body = body_of(job, told(job, 2)) + b" " * 200_000
    headers = {
        "Content-Type": "application/json",
        "Authorization": f"Bearer {token}",
        "Content-Length": f"{len(body):026d}",
    }
    connection = http.client.HTTPConnection(service.url.removeprefix("http://"), timeout=60)
    with closing(connection):
        connection.request("POST", "/internal/v1/events", body, headers)
        answer = connection.getresponse()
        assert (answer.status, json.load(answer)["accepted"]) == (200, 1)
    assert [len(batch.events) for batch in ways] == [1, 2]


def test_what_is_refused_is_refused_as_ever(service: Service, job: SimulatedJob, token: str) -> None:
    def wrong(change: Callable[[dict[str, Any]], None]) -> httpx.Response:
        document = json.loads(body_of(job, told(job, 2)))
        change(document)
        return post(service, token, json.dumps(document).encode())

    before = rows_of(service.database)[0]
    post(service, token, body_of(job, told(job, 1, "rank-1")))
    answer = wrong(lambda batch: batch["events"][1]["payload"]["points"][0].update(name="Loss"))
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    (problem,) = answer.json()["errors"]
    assert problem["field"].endswith("name")
    assert problem["value"] == "Loss"
    answer = wrong(lambda batch: batch["events"][1].update(subject_id=job.assignment.experiment_id))
    assert answer.json() == {
        "accepted": 1,
        "duplicates": 0,
        "rejected": {"metrics belong to a run": 1},
    }
    assert wrong(lambda batch: batch.update(experiment_id="exp-other")).status_code == 403
    assert rows_of(service.database)[0] == before + 2


def test_a_known_token_that_is_revoked_opens_nothing(service: Service, job: SimulatedJob, token: str) -> None:
    before = rows_of(service.database)[0]
    assert post(service, token, body_of(job, told(job, 1))).status_code == 200
    with service.database.write() as session:
        keys.revoke_of_experiment(session, job.assignment.experiment_id)
    assert post(service, token, body_of(job, told(job, 1, first=1))).status_code == 401
    assert rows_of(service.database)[0] == before + 1


def test_whoever_knows_a_known_token_s_name_is_a_stranger(
    service: Service, job: SimulatedJob, token: str, ways: list[EventBatch]
) -> None:
    assert post(service, token, body_of(job, told(job, 1))).status_code == 200
    guess = token[:-2] + ("aa" if token[-2:] != "aa" else "bb")
    assert post(service, guess, b"{" * 100_000).status_code == 401
    assert post(service, guess, body_of(job, told(job, 1, first=1))).status_code == 401
    assert len(ways) == 1


def test_with_the_database_away_the_job_is_told_to_come_again(
    service: Service, job: SimulatedJob, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert post(service, token, body_of(job, told(job, 1))).status_code == 200
    monkeypatch.setattr(point_groups, "store", failing(DatabaseUnavailable("it is away")))
    answer = post(service, token, body_of(job, told(job, 1, first=1)))
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")


def test_what_can_not_be_written_with_others_is_written_by_itself(
    service: Service,
    job: SimulatedJob,
    token: str,
    ways: list[EventBatch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert post(service, token, body_of(job, told(job, 1))).status_code == 200
    monkeypatch.setattr(point_groups, "store", failing(ValueError("a fault")))
    answer = post(service, token, body_of(job, told(job, 2)))
    assert answer.json() == {"accepted": 1, "duplicates": 1, "rejected": {}}
    assert len(ways) == 2


def failing(error: Exception) -> Callable[..., object]:
    """Something that can't be done."""

    def fail(*_: object) -> object:
        raise error

    return fail


def test_points_of_many_at_once_land_once(start: Start) -> None:
    service = start()
    jobs = [begun(service.database)[2] for _ in range(3)]
    tokens = [token_of(service, job) for job in jobs]
    events = [told(job, 40) for job in jobs]
    asks = [
        (tokens[each], body_of(jobs[each], events[each][begin : begin + 8]))
        for begin in range(0, 40, 4)
        for each in range(3)
    ]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda ask: post(service, *ask), asks * 2))
    assert {answer.status_code for answer in answers} == {200}
    assert sum(answer.json()["accepted"] for answer in answers) == 120
    assert rows_of(service.database) == (120, 120, 240)
    for job in jobs:
        for place, run in enumerate(job.assignment.runs[:2]):
            series = histories.metric_history(service.database, run.run_id).series
            assert [one.name for one in series] == ["accuracy", "loss"]
            numbers = range(place, 40, 2)
            assert series[1].step == tuple(10 * number for number in numbers)
            assert series[1].value == tuple(1 / (1 + number) for number in numbers)


def test_the_job_that_was_quiet_for_longest_is_forgotten_first() -> None:
    known = KnownJobs(most=2)
    callers = {
        token: keys.Caller(token.split("_")[1], "job", frozenset({keys.Scope.INGEST}), "exp")
        for token in ("gw_a_x", "gw_b_x", "gw_c_x")
    }
    known.note("gw_a_x", callers["gw_a_x"])
    known.note("gw_b_x", callers["gw_b_x"])
    assert known.find("gw_a_x") == callers["gw_a_x"]
    known.note("gw_c_x", callers["gw_c_x"])
    assert known.find("gw_b_x") is None
    assert known.find("gw_a_y") is None
    assert known.find("gw_a_x") == callers["gw_a_x"]
