import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from api.doors import Doors, is_loopback, split_authority
from api.middleware import RequestContext
from tests.api.serving import Ask


def door(
    hosts: frozenset[str] | None = frozenset({"127.0.0.1"}), secure: frozenset[tuple[str, int]] = frozenset()
) -> RequestContext:
    def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse("done")

    app = Starlette(routes=[Route("/", answer, methods=["GET", "POST"])])
    return RequestContext(Doors(app, hosts, secure))


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8411", "localhost:9000", "LOCALHOST", "localhost.:8411", "[::1]:8411"]
)
def test_own_names_are_answered_at_any_port(ask: Ask, host: str) -> None:
    assert ask(door(), "GET", "/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8411", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1"],
)
def test_a_rebound_name_is_refused(ask: Ask, host: str) -> None:
    response = ask(door(), "GET", "/", headers={"Host": host})
    assert response.status_code == 421
    assert response.json()["code"] == "unknown-host"
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "host", ["", "a b", "127.0.0.1:port", "127.0.0.1:99999", "[::1", "user@127.0.0.1", "a/b", "a,b"]
)
def test_a_malformed_host_is_refused(ask: Ask, host: str) -> None:
    response = ask(door(hosts=None), "GET", "/", headers={"Host": host})
    assert response.status_code == 400
    assert response.json()["code"] == "bad-host"


def test_a_service_that_demands_keys_answers_to_any_name(ask: Ask) -> None:
    assert ask(door(hosts=None), "GET", "/", headers={"Host": "lab.example"}).status_code == 200


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:8411", "http://127.0.0.1:8411"),
        ("localhost:80", "http://localhost"),
        ("localhost", "http://localhost:80"),
        ("[::1]:8411", "http://[::1]:8411"),
    ],
)
def test_the_own_origin_may_change_things(ask: Ask, host: str, origin: str) -> None:
    assert ask(door(), "POST", "/", headers={"Host": host, "Origin": origin}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://127.0.0.1:3000",
        "http://localhost:8411",
        "https://127.0.0.1",
        "https://127.0.0.1:8411",
        "http://evil.example",
        "null",
        "",
        "http://[",
        "file://",
    ],
)
def test_another_origin_may_not_change_things(ask: Ask, origin: str) -> None:
    response = ask(door(), "POST", "/", headers={"Host": "127.0.0.1:8411", "Origin": origin})
    assert response.status_code == 403
    assert response.json()["code"] == "foreign-origin"


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("lab.example", "https://lab.example", 200),
        ("lab.example:443", "https://lab.example", 200),
        ("lab.example", "http://lab.example", 403),
        ("lab.example", "https://lab.example:8443", 403),
        ("lab.example:8443", "https://lab.example:8443", 200),
        ("lab.example:8411", "http://lab.example:8411", 200),
        ("lab.example:8411", "https://lab.example:8411", 403),
        ("localhost", "https://localhost", 403),
    ],
)
def test_https_counts_where_people_reach_the_service_by_it(
    ask: Ask, host: str, origin: str, status: int
) -> None:
    secure = frozenset({("lab.example", 443), ("lab.example", 8443)})
    response = ask(door(None, secure), "POST", "/", headers={"Host": host, "Origin": origin})
    assert response.status_code == status


def test_whoever_comes_through_a_proxy_that_nobody_told_of_hears_what_to_set(ask: Ask) -> None:
    headers = {"Host": "lab.example", "Origin": "https://lab.example"}
    assert "GHOSTWATT_ALLOWED_HOSTS" in ask(door(None), "POST", "/", headers=headers).json()["detail"]


def test_a_cross_site_request_without_an_origin_is_refused(ask: Ask) -> None:
    assert ask(door(), "POST", "/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403


def test_another_origin_may_read_nothing_it_could_not_anyway(ask: Ask) -> None:
    response = ask(door(), "GET", "/", headers={"Origin": "http://evil.example"})
    assert response.status_code == 200
    assert "access-control-allow-origin" not in response.headers


def test_a_program_that_sends_no_origin_may_change_things(ask: Ask) -> None:
    assert ask(door(), "POST", "/").status_code == 200


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.1.2.3", False),
        ("lab.example", False),
        ("", False),
        ("localhost.evil.example", False),
    ],
)
def test_only_loopback_addresses_count_as_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_authorities_are_split_into_host_and_port() -> None:
    assert split_authority("Lab.Example.:81") == ("lab.example", 81)
    assert split_authority("[::1]") == ("::1", None)
    assert split_authority("a" * 301) is None
