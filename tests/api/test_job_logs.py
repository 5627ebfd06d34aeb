"""An experiment's log over HTTP: ranges, ends, and never the whole."""

import pytest

from services import job_logs
from services.log_parts import LogPart
from tests.api.serving import Service
from tests.services.simulated_job import begun

TEXT = "".join(f"line {number:05d}\n" for number in range(20_000))


@pytest.fixture(scope="module")
def path(service: Service) -> str:
    identifier, _, _ = begun(service.database)
    job_logs.store(service.database, identifier, 1, LogPart(0, TEXT.encode()), ended=False)
    return f"/v1/experiments/{identifier}/log"


def test_without_a_range_the_end_is_answered(service: Service, path: str) -> None:
    answer = service.http.get(path)
    assert (answer.status_code, answer.text) == (200, TEXT[-65_536:])
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["x-log-end"] == str(len(TEXT))
    assert answer.headers["x-log-complete"] == "false"
    assert service.http.get(path, params={"tail_bytes": 11}).text == TEXT[-11:]


@pytest.mark.parametrize(
    ("given", "first", "last"),
    [
        ("bytes=0-9", 0, 9),
        ("bytes=11-11", 11, 11),
        ("bytes=-5", len(TEXT) - 5, len(TEXT) - 1),
        (f"bytes={len(TEXT) - 3}-", len(TEXT) - 3, len(TEXT) - 1),
        (f"bytes={len(TEXT) - 3}-{len(TEXT) + 99}", len(TEXT) - 3, len(TEXT) - 1),
        ("Bytes=0-0", 0, 0),
    ],
)
def test_a_range_is_answered_with_what_it_holds(
    service: Service, path: str, given: str, first: int, last: int
) -> None:
    answer = service.http.get(path, headers={"Range": given})
    assert (answer.status_code, answer.text) == (206, TEXT[first : last + 1])
    assert answer.headers["content-range"] == f"bytes {first}-{last}/*"


@pytest.mark.parametrize(
    "given",
    [f"bytes={len(TEXT)}-", "bytes=5-4", "bytes=-0", "bytes=0-1,4-5", "bytes=a-b", "bytes=", "bytes=-"],
)
def test_a_range_that_can_not_be_is_refused_with_the_length(service: Service, path: str, given: str) -> None:
    answer = service.http.get(path, headers={"Range": given})
    assert (answer.status_code, answer.json()["code"]) == (416, "range-not-satisfiable")
    assert answer.headers["content-range"] == f"bytes */{len(TEXT)}"
    assert answer.headers["content-type"] == "application/problem+json"


def test_another_unit_is_ignored(service: Service, path: str) -> None:
    assert service.http.get(path, headers={"Range": "lines=1-2"}).status_code == 200


@pytest.mark.parametrize(
    "query", ["tail_bytes=0", "tail_bytes=1048577", "tail_bytes=x", "attempt=0", "all=1"]
)
def test_what_can_not_be_asked_is_refused(service: Service, path: str, query: str) -> None:
    assert service.http.get(f"{path}?{query}").status_code == 422


def test_never_more_than_a_mebibyte(service: Service) -> None:
    identifier, _, _ = begun(service.database)
    text = ("z" * 99 + "\n") * 40_000
    job_logs.store(service.database, identifier, 1, LogPart(0, text.encode()), ended=True)
    path = f"/v1/experiments/{identifier}/log"
    answer = service.http.get(path, headers={"Range": "bytes=0-"})
    assert len(answer.content) == 1_048_576
    assert answer.headers["content-range"] == f"bytes 0-1048575/{len(text)}"
    assert answer.headers["x-log-complete"] == "true"


def test_a_run_has_the_log_of_its_job(service: Service) -> None:
    identifier, _, job = begun(service.database)
    run = job.assignment.runs[0].run_id
    refused = service.http.get(f"/v1/runs/{run}/log")
    assert refused.status_code == 404
    assert "no job of it has begun" in refused.json()["detail"]
    job_logs.store(service.database, identifier, 1, LogPart(0, b"hello\n"), ended=False)
    assert service.http.get(f"/v1/runs/{run}/log").text == "hello\n"
    assert service.http.get("/v1/runs/none/log").status_code == 404
    assert service.http.get("/v1/experiments/none/log").status_code == 404
