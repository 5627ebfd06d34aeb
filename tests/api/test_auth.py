import base64
import re
from pathlib import Path

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute

from api import errors
from api.app import create_app
from api.auth import authorize, needed_scope, unguarded
from api.routes import ROUTERS
from services import keys, leases
from services.database import Database
from services.keys import Scope
from services.settings import Settings
from tests.api.serving import Ask, FakeBackground, Service, Start, running


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def routes() -> list[tuple[str, str, str]]:
    """Method, a concrete path, and the scope of every API route."""
    return [
        (sorted(route.methods or ())[0], re.sub(r"\{[^}]*\}", "exp-x", route.path), str(needed_scope(route)))
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute)
    ]


def ask_all(service: Service, headers: dict[str, str]) -> dict[str, dict[str, int]]:
    """Statuses by scope and path."""
    found: dict[str, dict[str, int]] = {}
    for method, path, scope in routes():
        status = service.http.request(method, path, headers=headers).status_code
        found.setdefault(scope, {})[f"{method} {path}"] = status
    return found


def test_every_route_says_what_it_needs() -> None:
    scopes = {scope for _, _, scope in routes()}
    assert scopes == {"nothing", "read", "submit", "admin", "ingest"}
    assert {path for _, path, scope in routes() if scope == "nothing"} == {"/healthz", "/readyz"}


def test_only_files_of_the_pages_are_served_beside_the_routes_that_are_walked(tmp_path: Path) -> None:
    """The tests below ask all of `ROUTERS`; an address that the app got from elsewhere would escape them."""
    walked = {getattr(route, "path", "") for router in ROUTERS for route in router.routes}
    app = create_app(Settings(data_dir=tmp_path))
    others = {path for route in app.routes if (path := getattr(route, "path", None)) is not None} - walked
    assert others == {"/static", "/static/swagger-ui"}


def test_a_route_that_says_nothing_is_found_and_denied(ask: Ask) -> None:
    router = APIRouter()

    @router.get("/forgotten")
    def forgotten() -> str:
        return "secret"

    assert unguarded([router]) == ["/forgotten"]
    app = FastAPI(dependencies=[Depends(authorize)])
    errors.install(app)
    app.include_router(router)
    response = ask(app, "GET", "/forgotten")
    assert response.status_code == 403
    assert "secret" not in response.text


def test_loopback_is_open_but_for_ingest(service: Service) -> None:
    statuses = ask_all(service, {})
    assert set(statuses.pop("ingest").values()) == {401}
    assert not {401, 403} & {status for scope in statuses.values() for status in scope.values()}


def test_where_keys_are_required_nothing_answers_without_one(start: Start) -> None:
    service = start(require_keys=True)
    for scope, statuses in ask_all(service, {}).items():
        if scope != "nothing":
            assert set(statuses.values()) == {401}, (scope, statuses)


@pytest.mark.parametrize(
    ("scope", "opened"),
    [
        (Scope.READ, {"read"}),
        (Scope.SUBMIT, {"read", "submit"}),
        (Scope.ADMIN, {"read", "submit", "admin"}),
    ],
)
def test_a_key_opens_its_scopes_and_no_others(start: Start, scope: Scope, opened: set[str]) -> None:
    service = start(require_keys=True)
    token = keys.create(service.database, "test", [scope]).token
    for needed, statuses in ask_all(service, bearer(token)).items():
        refused = {path for path, status in statuses.items() if status in (401, 403)}
        if needed in opened:
            assert not refused
        elif needed in ("read", "submit", "admin"):
            assert set(statuses.values()) == {403}
        elif needed == "ingest":
            assert 200 not in statuses.values()


@pytest.mark.parametrize(
    "header",
    [
        "Bearer",
        "bearer gw_x",
        "Basic",
        "Basic !!",
        "Digest x",
        "gw_x",
        "Bearer gw_aaaaaaaaaaaaaaaa_" + "a" * 43,
        "Bearer \xff",
    ],
)
def test_a_key_that_is_sent_must_be_right_even_on_an_open_service(service: Service, header: str) -> None:
    response = service.http.get("/v1/experiments", headers=[(b"authorization", header.encode("latin-1"))])
    assert response.status_code == 401
    assert response.json()["code"] == "unauthorized"
    assert response.headers["WWW-Authenticate"].startswith(("Bearer", "Basic"))


def test_a_revoked_key_opens_nothing(start: Start) -> None:
    service = start(require_keys=True)
    key = keys.create(service.database, "test", [Scope.ADMIN])
    assert service.http.get("/v1/experiments", headers=bearer(key.token)).status_code == 200
    keys.revoke(service.database, key.id)
    assert service.http.get("/v1/experiments", headers=bearer(key.token)).status_code == 401


def test_a_browser_is_asked_for_the_key_and_may_read_with_it(start: Start) -> None:
    service = start(require_keys=True)
    asked = service.http.get("/", headers={"Accept": "text/html,*/*"})
    assert asked.headers["WWW-Authenticate"].startswith("Basic")
    token = keys.create(service.database, "browser", [Scope.ADMIN]).token
    basic = {"Authorization": "Basic " + base64.b64encode(f"me:{token}".encode()).decode()}
    assert service.http.get("/", headers=basic).status_code == 200


def test_what_a_browser_sends_by_itself_changes_nothing(start: Start) -> None:
    service = start(require_keys=True)
    token = keys.create(service.database, "browser", [Scope.ADMIN]).token
    basic = {"Authorization": "Basic " + base64.b64encode(f"me:{token}".encode()).decode()}
    assert service.http.delete("/v1/experiments/exp-x", headers=basic).status_code == 401


def test_a_reachable_address_without_an_admin_key_is_refused(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    settings = Settings(data_dir=tmp_path_factory.mktemp("open"), host="0.0.0.0")
    background = FakeBackground()
    with pytest.raises(AssertionError, match="did not start"), running(settings, background):
        pass
    assert "start" not in background.calls


def test_a_reachable_address_with_an_admin_key_demands_it_of_everyone(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, host="0.0.0.0")
    with Database(settings.database_url) as database:
        database.migrate()
        token = keys.create(database, "first", [Scope.ADMIN]).token
    with running(settings, FakeBackground()) as service:
        assert service.http.get("/v1/experiments").status_code == 401
        named = {**bearer(token), "Host": "ghostwatt.lab.example"}
        assert service.http.get("/v1/experiments", headers=named).status_code == 200


def test_a_job_may_speak_for_its_own_experiment_only(service: Service) -> None:
    mine, other = service.submit(), service.submit()
    lease = leases.claim(service.database, "test", 30)
    while lease is not None and lease.experiment_id != mine:
        lease = leases.claim(service.database, "test", 30)
    assert lease is not None
    token = leases.begin_attempt(service.database, lease).token
    path = "/internal/v1/experiments/{}/assignment"
    own = service.http.get(path.format(mine), headers=bearer(token))
    assert own.status_code == 200
    assert own.json()["experiment_id"] == mine
    assert service.http.get(path.format(other), headers=bearer(token)).status_code == 403
    assert service.http.get("/v1/experiments", headers=bearer(token)).status_code == 403
    batch = {"experiment_id": other, "events": []}
    assert service.http.post("/internal/v1/events", json=batch, headers=bearer(token)).status_code == 403
    batch["experiment_id"] = mine
    assert service.http.post("/internal/v1/events", json=batch, headers=bearer(token)).status_code == 200


def test_a_job_s_token_opens_nothing_else(start: Start) -> None:
    service = start()
    identifier = service.submit()
    lease = leases.claim(service.database, "test", 30)
    assert lease is not None
    token = leases.begin_attempt(service.database, lease).token
    for needed, statuses in ask_all(service, bearer(token)).items():
        if needed not in ("nothing", "ingest"):
            assert set(statuses.values()) == {403}, (needed, statuses)
    log = service.http.get(f"/v1/experiments/{identifier}/log", headers=bearer(token))
    assert log.status_code == 403


def test_a_stranger_s_events_are_refused_before_they_are_read(service: Service) -> None:
    """With a body that is no batch at all, which whoever may speak is told, and nobody else."""
    for token in ("nonsense", "gw_aaaaaaaaaaaaaaaa_" + "a" * 43):
        response = service.http.post(
            "/internal/v1/events",
            content=b"{" * 1_000_000,
            headers={**bearer(token), "Content-Type": "application/json"},
        )
        assert response.status_code == 401


def test_a_foreign_page_can_not_submit(service: Service) -> None:
    headers = {"Origin": "http://localhost:3000", "Content-Type": "text/plain"}
    assert service.http.post("/v1/experiments", content="{}", headers=headers).status_code == 403


def test_a_rebound_name_is_not_answered(service: Service) -> None:
    response = httpx.get(f"{service.url}/v1/experiments", headers={"Host": "evil.example"})
    assert response.status_code == 421
