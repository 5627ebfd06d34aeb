"""What an address doesn't know is refused with what it knows; what is read as JSON has an ETag. At all addresses."""

import re
from collections.abc import Callable

import pytest
from fastapi.routing import APIRoute

from api.auth import needed_scope
from api.queries import parameters_of
from api.routes import ROUTERS
from services import groups, leases
from services.groups import Shape
from tests.api.serving import Service
from tests.services.simulated_job import begun, ran

ROUTES = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]


@pytest.fixture(scope="module")
def token(service: Service) -> Callable[[str], str]:
    """A job's or a worker group's, by address."""
    identifier, lease, _ = begun(service.database)
    job = leases.begin_attempt(service.database, lease).token
    group = groups.register(
        service.database, "a-group", Shape(2, "cpu", 1.0, service.url, "x"), identifier, 1
    )
    return lambda path: job if path.endswith(("/events", "/assignment", "/services")) else group


API = [route for route in ROUTES if route.include_in_schema]
NAMES = [f"{next(iter(route.methods or ()))} {route.path}" for route in API]


@pytest.mark.parametrize("route", API, ids=NAMES)
def test_a_parameter_that_is_not_known_is_refused_with_those_that_are(
    service: Service, token: Callable[[str], str], route: APIRoute
) -> None:
    path = re.sub(r"\{[^}]*\}", "exp-x", route.path)
    headers = {"Authorization": f"Bearer {token(path)}"} if needed_scope(route) == "ingest" else {}
    method = next(iter(route.methods or ()))
    answer = service.http.request(method, f"{path}?colour=red&colour=blue&limits=5", headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    problems = answer.json()["errors"]
    assert [problem["field"] for problem in problems] == ["query.colour", "query.limits"]
    for name in parameters_of(route):
        assert name in problems[0]["limit"]
        assert name in answer.json()["detail"]


def test_links_to_pages_may_carry_what_others_put_there(service: Service) -> None:
    identifier = ran(service.database)
    for path in ("/", f"/experiments/{identifier}", "/docs"):
        answer = service.http.get(f"{path}?utm_source=a-mail", headers={"Accept": "text/html"})
        assert answer.status_code == 200, path


def test_known_ones_are_those_of_the_description(service: Service) -> None:
    paths = service.http.get("/openapi.json").json()["paths"]
    for route in API:
        for method in route.methods or ():
            described = paths[route.path_format][method.lower()].get("parameters", [])
            assert parameters_of(route) == [each["name"] for each in described if each["in"] == "query"]


def test_whatever_is_read_as_json_has_an_etag_but_for_health(service: Service) -> None:
    identifier = ran(service.database)
    without = set()
    for route in ROUTES:
        if "GET" not in (route.methods or ()) or needed_scope(route) == "ingest" or "/events" in route.path:
            continue
        path = route.path.replace("{run_id}", f"{identifier}-r000-a00")
        answer = service.http.get(path.replace("{experiment_id}", identifier))
        if answer.headers["content-type"] != "application/json":
            continue
        if "etag" not in answer.headers:
            without.add(path)
            continue
        tag = answer.headers["etag"]
        again = service.http.get(path.replace("{experiment_id}", identifier), headers={"If-None-Match": tag})
        # How long something has lasted is another answer each time.
        assert again.status_code == (304 if again.headers["etag"] == tag else 200)
    assert without == {"/healthz", "/readyz"}
