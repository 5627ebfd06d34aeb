"""Every address answers HEAD as GET, OPTIONS, and refuses the rest with all that it takes."""

import re

import pytest

from api.routes import ROUTERS
from services import job_logs
from services.log_parts import LogPart
from tests.api.serving import Service
from tests.services.simulated_job import ran


@pytest.fixture(scope="module")
def ended(service: Service) -> str:
    identifier = ran(service.database)
    job_logs.store(service.database, identifier, 1, LogPart(0, b"a line\n"), ended=True)
    return identifier


def addresses(identifier: str) -> dict[str, set[str]]:
    """Methods by concrete address."""
    found: dict[str, set[str]] = {}
    for router in ROUTERS:
        for route in router.routes:
            path = getattr(route, "path", "").replace("{run_id}", f"{identifier}-r000-a00")
            path = re.sub(r"\{[^}]*\}", identifier, path)
            found.setdefault(path, set()).update(getattr(route, "methods", ()))
    return found


def test_head_is_get_without_its_body(service: Service, ended: str) -> None:
    for path, methods in addresses(ended).items():
        if "GET" not in methods or path.startswith("/internal/") or path == "/metrics":
            continue
        head = service.http.head(path)
        assert head.content == b"", path
        if path.endswith("/events"):
            assert (head.status_code, head.headers["content-type"]) == (
                200,
                "text/event-stream; charset=utf-8",
            )
            continue
        get = service.http.get(path)
        assert head.status_code == get.status_code == 200, path
        for name in ("content-type", "etag", "content-length"):
            if path not in ("/readyz", "/v1/queue") or name == "content-type":
                assert head.headers.get(name) == get.headers.get(name), (path, name)


def test_head_knows_what_has_not_changed(service: Service, ended: str) -> None:
    path = f"/v1/experiments/{ended}"
    tag = service.http.head(path).headers["etag"]
    assert tag == service.http.get(path).headers["etag"]
    same = service.http.head(path, headers={"If-None-Match": tag})
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    assert service.http.get(path, headers={"If-None-Match": f'W/{tag}, "other"'}).status_code == 304
    assert service.http.get(path, headers={"If-None-Match": '"other"'}).status_code == 200
    assert service.http.head("/v1/experiments/exp-none").status_code == 404


def test_any_other_method_is_refused_with_all_that_are_taken(service: Service, ended: str) -> None:
    for path, methods in addresses(ended).items():
        expected = methods | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set())
        for method in {"GET", "HEAD", "PUT", "PATCH", "TRACE", "PROPFIND"} - expected:
            refused = service.http.request(method, path)
            assert refused.status_code == 405, (method, path)
            assert set(refused.headers["allow"].split(", ")) == expected, path
            if method != "HEAD":
                assert refused.headers["content-type"] == "application/problem+json"
                assert refused.json()["code"] == "method-not-allowed"


def test_a_method_that_http_does_not_have_is_a_problem(service: Service) -> None:
    refused = service.http.request("BREW", "/healthz")
    # Which of the two depends on who reads the requests.
    assert refused.status_code in (400, 405)
    assert refused.json()["code"] in ("malformed-request", "method-not-allowed")


def test_options_says_what_is_taken_and_opens_nothing(service: Service, ended: str) -> None:
    for path, methods in addresses(ended).items():
        answer = service.http.options(path, headers={"Origin": "https://evil.example"})
        assert answer.status_code == 204, path
        assert methods <= set(answer.headers["allow"].split(", "))
        assert not [name for name in answer.headers if name.startswith("access-control-")]
    for path in ("/static/ghostwatt.css", "/static/swagger-ui/swagger-ui.css"):
        assert service.http.options(path).headers["allow"] == "GET, HEAD, OPTIONS"
    assert service.http.options("/nothing").status_code == 404


def test_the_style_sheet_is_only_read(service: Service) -> None:
    assert service.http.head("/static/ghostwatt.css").status_code == 200
    refused = service.http.put("/static/ghostwatt.css")
    assert (refused.status_code, refused.headers["content-type"]) == (405, "application/problem+json")
    assert refused.headers["allow"] == "GET, HEAD, OPTIONS"
