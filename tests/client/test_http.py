from collections.abc import Callable

import httpx
import pytest

from client.client import GhostwattClient
from client.errors import (
    BadSpec,
    ExitCode,
    GhostwattError,
    Refused,
    ServiceFailed,
    ServiceUnreachable,
    TimedOut,
)
from tests.client.answers import experiment, problem

Handler = Callable[[httpx.Request], httpx.Response]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client.http.PAUSE_S", 0.0)


def client(handler: Handler, url: str = "http://127.0.0.1:8411") -> GhostwattClient:
    return GhostwattClient(url, "gw_key", transport=httpx.MockTransport(handler))


def test_the_key_is_sent_as_a_bearer_token() -> None:
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["authorization"])
        return httpx.Response(202, json={"id": "exp-1", "state": "queued"})

    client(answer).submit({"name": "x"})
    assert seen == ["Bearer gw_key"]


def test_a_submission_is_repeated_with_the_same_key_when_the_connection_breaks() -> None:
    keys = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["idempotency-key"])
        if len(keys) < 3:
            raise httpx.ReadError("connection reset")
        return httpx.Response(202, json={"id": "exp-1", "state": "queued"})

    assert client(answer).submit({"name": "x"}).id == "exp-1"
    assert len(keys) == 3
    assert len(set(keys)) == 1


def test_what_may_not_be_repeated_is_sent_once() -> None:
    count = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal count
        count += 1
        raise httpx.ReadError("connection reset")

    with pytest.raises(ServiceUnreachable):
        client(answer).cancel("exp-1")
    assert count == 1


def test_a_busy_service_is_asked_again() -> None:
    answers = [
        problem(503, "database-unavailable"),
        httpx.Response(200, json={"status": "ready", "checks": []}),
    ]
    service = client(lambda request: answers.pop(0))
    service._http.request("GET", "/x")
    assert answers == []


def test_a_submission_whose_first_try_is_under_way_is_asked_for_again() -> None:
    answers = [
        problem(409, "request-in-flight"),
        httpx.Response(202, json={"id": "exp-1", "state": "queued"}),
    ]
    assert client(lambda request: answers.pop(0)).submit({}).id == "exp-1"


def test_nobody_there_says_where_and_what_to_do() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(ServiceUnreachable, match=r"127\.0\.0\.1:8411.*ghostwatt serve") as error:
        client(answer).experiment("exp-1")
    assert int(error.value.exit_code) == 3


def test_a_timeout_says_so() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("slow")

    with pytest.raises(ServiceUnreachable, match="in time"):
        client(answer).experiment("exp-1")


def test_a_refusal_carries_its_problem() -> None:
    with pytest.raises(Refused, match="what happened") as error:
        client(lambda request: problem(404)).experiment("exp-1")
    assert error.value.problem.code == "not-found"
    assert error.value.exit_code == ExitCode.REFUSED


def test_a_bad_spec_names_its_fields_and_is_the_users_to_mend() -> None:
    fields = [{"field": "arms.1.ghosts", "message": "too many", "value": "300"}]
    with pytest.raises(BadSpec) as error:
        client(lambda request: problem(422, "invalid-spec", errors=fields)).submit({})
    assert error.value.problem.errors[0].field == "arms.1.ghosts"
    assert error.value.exit_code == ExitCode.USAGE


def test_the_services_own_error_gives_the_request_id() -> None:
    with pytest.raises(ServiceFailed, match="r-77"):
        client(lambda request: problem(500, "internal-error", request_id="r-77")).experiment("exp-1")


@pytest.mark.parametrize("answer", [httpx.Response(502, text="<h1>proxy</h1>"), httpx.Response(404, json={})])
def test_an_answer_of_somebody_else_is_not_taken_for_a_refusal(answer: httpx.Response) -> None:
    with pytest.raises(ServiceFailed, match="is that Ghostwatt"):
        client(lambda request: answer).cancel("exp-1")


@pytest.mark.parametrize("body", ["<html>", "[]", '{"id": 1}', '{"id": "exp-1"}', ""])
def test_an_unreadable_success_is_not_taken_for_one(body: str) -> None:
    with pytest.raises(ServiceFailed, match="can't read"):
        client(lambda request: httpx.Response(202, text=body)).cancel("exp-1")


@pytest.mark.parametrize("url", ["", "localhost:8411", "ftp://x", "http://", "http://user:secret@host"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(GhostwattError):
        GhostwattClient(url)


@pytest.mark.parametrize("identifier", ["../../healthz", "a/b?x=1#y", "\x00", "é", "%2e%2e", ""])
def test_an_id_stays_one_path_segment(identifier: str) -> None:
    paths = []

    def answer(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.raw_path.decode())
        return problem(404)

    with pytest.raises(Refused):
        client(answer).run(identifier)
    assert paths[0].startswith("/v1/runs/")
    assert paths[0].count("/") == 3
    assert "?" not in paths[0]


def test_pages_are_followed_until_the_limit() -> None:
    queries = []

    def answer(request: httpx.Request) -> httpx.Response:
        queries.append(dict(request.url.params))
        return httpx.Response(200, json={"items": [], "next_cursor": "more" if len(queries) < 3 else None})

    assert list(client(answer).experiments(state="failed")) == []
    assert [query.get("cursor") for query in queries] == [None, "more", "more"]
    assert {query["state"] for query in queries} == {"failed"}
    assert "name" not in queries[0]


def test_nan_in_a_spec_is_left_to_the_service_to_refuse_by_name() -> None:
    bodies = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(request.content)
        return httpx.Response(202, json={"id": "exp-1", "state": "queued"})

    client(answer).submit("training: {learning_rate: .nan}")
    assert b"NaN" in bodies[0]


def test_waiting_outlasts_a_service_that_restarts() -> None:
    answers = [experiment("running"), problem(502, "x"), httpx.Response(502), experiment("succeeded")]
    seen: list[str] = []
    found = client(lambda request: answers.pop(0)).wait(
        "exp-1", poll_s=0, on_change=lambda experiment: seen.append(experiment.state)
    )
    assert found.state == "succeeded"
    assert seen == ["running", "succeeded"]


def test_waiting_does_not_outlast_a_service_that_is_gone() -> None:
    with pytest.raises(ServiceFailed):
        client(lambda request: problem(500, "internal-error")).wait("exp-1", poll_s=0, patience_s=0)


def test_waiting_ends_in_time_even_if_the_service_is_silent() -> None:
    with pytest.raises(TimedOut, match="not seen"):
        client(lambda request: problem(500, "internal-error")).wait("exp-1", poll_s=0, timeout_s=0)


def test_waiting_for_what_does_not_exist_is_refused_at_once() -> None:
    with pytest.raises(Refused):
        client(lambda request: problem(404)).wait("exp-1", poll_s=0)
