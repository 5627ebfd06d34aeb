"""Whoever may not send a body has none of it read; whoever may has the same limits everywhere."""

import re
import socket
from collections.abc import Callable, Iterator

import pytest
from fastapi.routing import APIRoute

from api.auth import needed_scope
from api.limits import BODY_BYTES
from api.routes import ROUTERS
from services import groups, keys, leases
from services.groups import Shape
from services.keys import Scope
from services.settings import Settings
from tests.api.serving import FakeBackground, Service, running
from tests.services.simulated_job import begun

TAKING = [
    (next(iter(route.methods or ())), re.sub(r"\{[^}]*\}", "exp-x", route.path), needed_scope(route))
    for router in ROUTERS
    for route in router.routes
    if isinstance(route, APIRoute) and not {"GET", "HEAD"} & set(route.methods or ())
]
"""Method, address and scope of everything that a body may be sent to."""
READING = [
    route.path
    for router in ROUTERS
    for route in router.routes
    if isinstance(route, APIRoute) and "requestBody" in (route.openapi_extra or {})
]
"""Addresses that make something of a body."""
STRANGERS = {
    "nobody": None,
    "a made-up key": "gw_aaaaaaaaaaaaaaaa_" + "a" * 43,
    "a made-up group": "gg_" + "a" * 43,
    "nonsense": "nonsense",
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("authorized"), require_keys=True)
    with running(settings, FakeBackground()) as found:
        yield found


def first_line(service: Service, method: str, path: str, token: str | None, *headers: str) -> str:
    """What comes first after a head whose body waits to be asked for."""
    host, port = service.url.removeprefix("http://").split(":")
    head = [
        *(f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"),
        *("Expect: 100-continue", *headers),
        *([] if token is None else [f"Authorization: Bearer {token}"]),
    ]
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode())
        return connection.recv(65_536).decode().partition("\r\n")[0]


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize(("method", "path", "scope"), TAKING)
def test_nobody_s_body_is_asked_for(
    service: Service, method: str, path: str, scope: str, stranger: str
) -> None:
    token = STRANGERS[stranger]
    for length in ("Content-Length: 1000", "Transfer-Encoding: chunked"):
        assert first_line(service, method, path, token, length) == "HTTP/1.1 401 Unauthorized"


@pytest.mark.parametrize(("method", "path", "scope"), TAKING)
def test_nor_is_that_of_a_key_without_the_scope(service: Service, method: str, path: str, scope: str) -> None:
    token = keys.create(service.database, "reader", [Scope.READ]).token
    status = first_line(service, method, path, token, "Content-Length: 1000").split()[1]
    assert status == "100" if path in READING and scope == "read" else status in ("401", "403", "404")


@pytest.mark.parametrize("body", [b"{]", b"[" * 200_000, b"", b"{}"])
@pytest.mark.parametrize(("method", "path", "scope"), TAKING)
def test_what_nobody_sends_is_not_looked_at(
    service: Service, method: str, path: str, scope: str, body: bytes
) -> None:
    headers = {"Content-Type": "application/json"}
    assert service.http.request(method, path, content=body, headers=headers).status_code == 401


def test_no_route_leaves_its_body_to_what_reads_it_before_authorization() -> None:
    """FastAPI reads a body that it knows before it calls any dependency."""
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    assert not [route.path for route in routes if route.body_field is not None]


@pytest.fixture(scope="module")
def tokens(service: Service) -> Callable[[str], str]:
    """The right one for an address."""
    admin = keys.create(service.database, "admin", [Scope.ADMIN]).token
    identifier, lease, _ = begun(service.database)
    job = leases.begin_attempt(service.database, lease).token
    shape = Shape(2, "cpu", 1.0, service.url, "test")
    group = groups.register(service.database, "a-group", shape, identifier, 1)

    def token(path: str) -> str:
        if not path.startswith("/internal/"):
            return admin
        return job if path.endswith("/events") else group

    return token


@pytest.mark.parametrize("path", READING)
def test_a_body_is_as_long_as_its_address_takes_however_it_is_sent(
    service: Service, tokens: Callable[[str], str], path: str
) -> None:
    limit_bytes = next(size for prefix, size in BODY_BYTES.items() if path.startswith(prefix))

    def parts() -> Iterator[bytes]:
        for _ in range(limit_bytes // 2**16 + 2):
            yield b" " * 2**16

    headers = {"Authorization": f"Bearer {tokens(path)}", "Content-Type": "application/json"}
    told = service.http.post(path, content=b" " * (limit_bytes + 1), headers=headers)
    chunked = service.http.post(path, content=parts(), headers=headers)
    for answer in (told, chunked):
        assert (answer.status_code, answer.json()["code"]) == (413, "body-too-large")


@pytest.mark.parametrize("path", READING)
def test_a_body_that_is_no_json_is_refused_in_the_same_way_everywhere(
    service: Service, tokens: Callable[[str], str], path: str
) -> None:
    authorization = {"Authorization": f"Bearer {tokens(path)}"}
    for kind, statuses in (("application/json", {400, 422}), ("text/plain", {415})):
        answer = service.http.post(path, content=b"{]", headers={**authorization, "Content-Type": kind})
        assert answer.status_code in statuses
        assert answer.headers["content-type"] == "application/problem+json"
