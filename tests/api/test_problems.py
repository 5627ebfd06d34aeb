import socket

import httpx
import pytest

from api.errors import shown
from tests.api.serving import Service


def check_problem(response: httpx.Response, status: int, code: str) -> None:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == status
    assert body["code"] == code
    assert body["type"] == f"urn:ghostwatt:problem:{code}"
    assert body["request_id"] == response.headers["X-Request-ID"]
    assert body["detail"]


def test_an_address_that_is_not_served(service: Service) -> None:
    check_problem(service.http.get("/nowhere"), 404, "not-found")
    check_problem(service.http.get("/v1/experiments/"), 404, "not-found")
    check_problem(service.http.get("/static/../../etc/passwd"), 404, "not-found")
    check_problem(service.http.get("/static/%2e%2e/%2e%2e/pyproject.toml"), 404, "not-found")


def test_an_id_that_nothing_has(service: Service) -> None:
    check_problem(service.http.get("/v1/experiments/exp-nothing"), 404, "not-found")
    check_problem(service.http.get("/v1/runs/exp-nothing-r000-a00"), 404, "not-found")


def test_a_method_that_is_not_answered(service: Service) -> None:
    response = service.http.put("/v1/experiments")
    check_problem(response, 405, "method-not-allowed")
    assert response.headers["Allow"]


def test_a_body_of_another_type(service: Service) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "image/png", ""):
        response = service.http.post("/v1/experiments", content="{}", headers={"Content-Type": kind})
        check_problem(response, 415, "unsupported-media-type")
    latin = {"Content-Type": "application/json; charset=latin-1"}
    check_problem(
        service.http.post("/v1/experiments", content="{}", headers=latin), 415, "unsupported-charset"
    )


def test_a_body_that_is_empty_or_unreadable(service: Service) -> None:
    headers = {"Content-Type": "application/json"}
    check_problem(service.http.post("/v1/experiments", content="", headers=headers), 400, "empty-body")
    for body in ("{", "{'a': 1}", "\x00", "nul", b"\xff\xfe", "[" * 100_000):
        response = service.http.post("/v1/experiments", content=body, headers=headers)
        check_problem(response, 400, "unreadable-body")


@pytest.mark.parametrize("body", ["[]", "1", '"text"', "null", "NaN"])
def test_a_document_that_is_no_mapping(service: Service, body: str) -> None:
    headers = {"Content-Type": "application/json"}
    response = service.http.post("/v1/experiments", content=body, headers=headers)
    check_problem(response, 422, "invalid-document")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400"])
def test_a_number_that_is_none_is_refused_by_field(service: Service, number: str) -> None:
    body = f'{{"name": "x", "training": {{"learning_rate": {number}}}}}'
    headers = {"Content-Type": "application/json"}
    response = service.http.post("/v1/experiments", content=body, headers=headers)
    check_problem(response, 422, "invalid-document")
    problem = next(p for p in response.json()["errors"] if p["field"] == "training.learning_rate")
    assert problem["value"] in ("nan", "inf", "-inf")


def test_a_hundred_thousand_mistakes_are_answered_with_the_first_few(service: Service) -> None:
    body = "{" + ",".join(f'"field{number}":1' for number in range(100_000)) + "}"
    response = service.http.post(
        "/v1/experiments", content=body, headers={"Content-Type": "application/json"}
    )
    check_problem(response, 422, "invalid-document")
    assert len(response.json()["errors"]) == 50
    assert "more)" in response.json()["detail"]


def test_a_body_that_is_too_long(service: Service) -> None:
    headers = {"Content-Type": "application/json"}
    response = service.http.post("/v1/experiments", content=b" " * (3 << 20), headers=headers)
    check_problem(response, 413, "body-too-large")


def test_yaml_that_stands_for_more_than_it_is(service: Service) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    headers = {"Content-Type": "application/yaml"}
    response = service.http.post("/v1/experiments", content="\n".join(lines), headers=headers)
    check_problem(response, 400, "unreadable-body")
    assert "aliases" in response.json()["detail"]
    endless = service.http.post("/v1/experiments", content="a: &a [*a]", headers=headers)
    check_problem(endless, 400, "unreadable-body")


@pytest.mark.parametrize(
    "body",
    [
        "a: b: c",
        "\t",
        "!!python/object/apply:os.system [id]",
        "a: !!bool x",
        "a: !!timestamp x",
        "a: 2001-99-99",
        "? [a]\n: b",
        "a: !!binary x",
        "a: &x\n  <<: *x",
        "%TAG ! x",
        "- " * 5_000,
        "[" * 5_000,
        "a: !!int x",
    ],
)
def test_yaml_that_can_not_be_read(service: Service, body: str) -> None:
    headers = {"Content-Type": "application/yaml"}
    response = service.http.post("/v1/experiments", content=body, headers=headers)
    assert response.status_code in (400, 422), response.text
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("identifier", ["a%00b", "%ff", "a" * 65, "..%2f", "é", "-x", "a b"])
def test_an_id_that_can_be_none(service: Service, identifier: str) -> None:
    response = service.http.get(f"/v1/experiments/{identifier}")
    assert response.status_code in (404, 422)
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=201",
        "limit=x",
        "limit=1e3",
        "state=asleep",
        "tag=novalue%00",
        "name=%00",
        "cursor=!",
        "cursor=AAAA",
        "submitted_after=yesterday",
        "submitted_after=2026-01-01T00:00:00",
        "tag==",
        "strategy=DROP%20TABLE",
        "limit=1&limit=2&x=1",
    ],
)
def test_a_query_that_can_not_be_used(service: Service, query: str) -> None:
    response = service.http.get(f"/v1/experiments?{query}")
    assert response.status_code == 422, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["detail"]


@pytest.mark.parametrize("path", ["/v1/experiments", "/v1/findings"])
@pytest.mark.parametrize("name", ["submitted_after", "submitted_before"])
@pytest.mark.parametrize(
    "moment",
    [
        "0001-01-01T00:00:00+14:00",
        "0001-01-01T00:00:00Z",
        "1969-12-31T23:59:59Z",
        "9000-01-01T00:00:00Z",
        "9999-12-31T23:59:59-14:00",
        "9999-12-31T23:59:59Z",
        "-62135596800",
    ],
)
def test_a_time_that_no_time_zone_can_be_sure_of(service: Service, path: str, name: str, moment: str) -> None:
    response = service.http.get(path, params={name: moment})
    check_problem(response, 422, "invalid-request")
    (problem,) = response.json()["errors"]
    assert problem["field"] == f"query.{name}"
    assert "between the years 1970 and 8999" in problem["message"]


@pytest.mark.parametrize("moment", ["1970-01-01T00:00:00+14:00", "8999-12-31T23:59:59-23:59"])
def test_all_other_times_are_taken(service: Service, moment: str) -> None:
    for name in ("submitted_after", "submitted_before"):
        for path in ("/v1/experiments", "/v1/findings"):
            assert service.http.get(path, params={name: moment}).status_code == 200


def test_what_is_repeated_to_the_caller_is_short_and_printable() -> None:
    assert shown("a\x00b\n\ud800") == "a\\x00b\\n\\ud800"
    assert len(shown("x" * 10_000)) == 201
    assert shown(float("nan")) == "nan"


def test_a_refusal_reaches_a_caller_who_is_still_sending(service: Service) -> None:
    headers = {"Content-Type": "application/json"}
    response = service.http.post("/internal/v1/events", content=b" " * (20 << 20), headers=headers)
    check_problem(response, 401, "unauthorized")


def test_a_caller_who_asks_before_sending_is_refused_before_sending(service: Service) -> None:
    host, port = service.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        fields = [f"Host: {host}", "Content-Length: 99999999", "Expect: 100-continue"]
        head = "\r\n".join(["POST /v1/experiments HTTP/1.1", *fields, "", ""])
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
