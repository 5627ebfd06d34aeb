import pytest
from sqlalchemy import text

from services.database import Database
from tests.api.serving import Service, Start


def checks(service: Service) -> tuple[int, str, dict[str, bool]]:
    response = service.http.get("/readyz")
    body = response.json()
    return response.status_code, body["status"], {check["name"]: check["ok"] for check in body["checks"]}


def test_a_living_process_says_so(service: Service) -> None:
    assert service.http.get("/healthz").json() == {"status": "ok"}


def test_all_is_well(start: Start) -> None:
    status, word, found = checks(start())
    assert (status, word) == (200, "ready")
    assert found == {"database": True, "migrations": True, "dispatcher": True, "cluster": True}


def test_a_cluster_that_is_down_degrades(start: Start) -> None:
    service = start()
    service.background.problem = "Ray is starting"
    status, word, found = checks(service)
    assert (status, word) == (200, "degraded")
    assert not found["cluster"]
    assert "Ray is starting" in service.http.get("/readyz").text


def test_what_the_dispatcher_fails_at_unexpectedly_degrades_and_is_told(start: Start) -> None:
    service = start()
    service.background.fails = "these fail, and are tried again: following exp-1 (TypeError)"
    status, word, found = checks(service)
    assert (status, word) == (200, "degraded")
    assert not found["dispatcher"]
    assert "following exp-1 (TypeError)" in service.http.get("/readyz").text


def test_secrets_in_what_the_dispatcher_fails_at_are_not_told(start: Start) -> None:
    service = start()
    service.background.problem = (
        "http://ray:hunter22@head:8265 refused: Authorization: Bearer abcdefgh12345678"
    )
    service.background.fails = "following exp-1 (OperationalError: host=db password=correcthorse)"
    told = service.http.get("/readyz").text
    assert "http://ray:[secret]@head:8265 refused" in told
    assert "host=db password=[secret]" in told
    assert not any(secret in told for secret in ("hunter22", "abcdefgh12345678", "correcthorse"))


@pytest.mark.parametrize("age_s", [None, 31.0])
def test_a_dispatcher_without_signs_of_life_is_unready(start: Start, age_s: float | None) -> None:
    service = start()
    service.background.age_s = age_s
    status, word, found = checks(service)
    assert (status, word) == (503, "unready")
    assert not found["dispatcher"]


def test_a_database_that_is_gone_is_unready_and_named_only(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = start()

    def gone(self: Database) -> None:
        from services.errors import DatabaseUnavailable

        raise DatabaseUnavailable("could not connect to user=secret host=db.internal")

    monkeypatch.setattr(Database, "check", gone)
    status, word, _ = checks(service)
    assert (status, word) == (503, "unready")
    assert "secret" not in service.http.get("/readyz").text


def test_migrations_that_are_behind_are_unready(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    service = start()
    monkeypatch.setattr(Database, "is_at_head", lambda self: False)
    assert checks(service)[1] == "unready"


def test_a_database_that_another_version_left_behind_is_unready(start: Start) -> None:
    service = start()
    assert checks(service)[1] == "ready"
    with service.database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = 'of another version'"))
    status, word, found = checks(service)
    assert (status, word) == (503, "unready")
    assert found["database"]
    assert not found["migrations"]
