"""The queue's pause: who may set it, that it holds, and that it is seen."""

from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from api.examples import SPEC
from client.command import app
from services import keys, leases
from services.keys import Scope
from services.settings import Settings
from tests.api.serving import FakeBackground, Start, running


def test_a_paused_queue_lets_nothing_begin_until_it_is_resumed(start: Start) -> None:
    service = start()
    service.submit()
    assert service.http.get("/v1/queue").json()["paused"] is False
    paused = service.http.post("/v1/queue/pause", json={"reason": "new driver"}).json()
    assert (paused["paused"], paused["reason"], paused["queued"]) == (True, "new driver", 1)
    assert paused["oldest_queued_s"] >= 0
    assert leases.claim(service.database, "test", 60) is None
    again = service.http.post("/v1/queue/pause", json={"reason": "still"})
    assert (again.status_code, again.json()["reason"]) == (200, "still")
    for _ in range(2):
        assert service.http.post("/v1/queue/resume").json()["paused"] is False
    assert service.http.get("/v1/queue").json()["reason"] is None
    assert leases.claim(service.database, "test", 60) is not None


@pytest.mark.parametrize("body", ["{}", '{"reason": ""}', '{"reason": "  "}', '{"reason": 1}', "[]", "{",
                                  '{"reason": "a", "until": 1}', '{"reason": "\\u0000"}'])  # fmt: skip
def test_a_pause_needs_a_reason(start: Start, body: str) -> None:
    service = start()
    answer = service.http.post("/v1/queue/pause", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert service.http.get("/v1/queue").json()["paused"] is False


def test_only_admins_may_pause_and_resume(tmp_path: Path) -> None:
    with running(Settings(data_dir=tmp_path, require_keys=True), FakeBackground()) as service:

        def statuses(scope: Scope) -> list[int]:
            key = keys.create(service.database, scope, [scope]).token
            mine = {"Authorization": f"Bearer {key}"}
            return [
                service.http.get("/v1/queue", headers=mine).status_code,
                service.http.post("/v1/queue/pause", json={"reason": "x"}, headers=mine).status_code,
                service.http.post("/v1/queue/resume", headers=mine).status_code,
            ]

        assert statuses(Scope.READ) == statuses(Scope.SUBMIT) == [200, 403, 403]
        assert statuses(Scope.ADMIN) == [200, 200, 200]


def test_priorities_are_set_in_the_spec_and_seen(start: Start) -> None:
    service = start()
    first = service.submit()
    urgent = service.submit(resources={"priority": 100})
    assert service.http.get(f"/v1/experiments/{urgent}").json()["priority"] == 100
    found = service.http.get("/v1/queue").json()
    assert found["by_priority"] == [{"priority": 100, "queued": 1}, {"priority": 0, "queued": 1}]
    shown = CliRunner().invoke(app, ["queue", "show", "--url", service.url]).stdout
    assert shown.endswith("1 of priority 100, 1 of priority 0\n")
    taken = [leases.claim(service.database, "test", 60) for _ in range(2)]
    assert [lease.experiment_id for lease in taken if lease] == [urgent, first]
    for priority in (101, -101, 0.5, True):
        answer = service.http.post(
            "/v1/experiments", json={**SPEC, "name": "x", "resources": {"priority": priority}}
        )
        assert answer.status_code == 422
        assert [each["field"] for each in answer.json()["errors"]] == ["resources.priority"]


def test_only_admins_may_push_past_others(tmp_path: Path) -> None:
    with running(Settings(data_dir=tmp_path, require_keys=True), FakeBackground()) as service:

        def submitted(scope: Scope, priority: int) -> httpx.Response:
            key = keys.create(service.database, scope, [scope]).token
            return service.http.post(
                "/v1/experiments",
                json={**SPEC, "resources": {"priority": priority}},
                headers={"Authorization": f"Bearer {key}"},
            )

        refused = submitted(Scope.SUBMIT, 1)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert "resources.priority: 1" in refused.json()["detail"]
        assert "scope admin" in refused.json()["detail"]
        assert service.http.get("/v1/experiments").status_code == 401
        assert [submitted(Scope.SUBMIT, priority).status_code for priority in (0, -5)] == [202, 202]
        assert submitted(Scope.ADMIN, 100).status_code == 202


def test_a_repeat_with_another_priority_is_another_request(start: Start) -> None:
    service = start()

    def submit(priority: int) -> int:
        answer = service.http.post(
            "/v1/experiments",
            json={**SPEC, "resources": {"priority": priority}},
            headers={"Idempotency-Key": "same"},
        )
        return answer.status_code

    assert [submit(priority) for priority in (1, 1, 2)] == [202, 202, 422]


def test_a_page_of_another_origin_may_not(start: Start) -> None:
    service = start()
    answer = service.http.post("/v1/queue/resume", headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403


def test_the_command_does_the_same(start: Start) -> None:
    service = start()

    def queue(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["queue", *arguments, "--url", service.url])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert queue("show") == "the queue is open\n0 waiting\n"
    assert "UTC: new driver" in queue("pause", "--reason", "new driver")
    service.submit()
    assert "1 waiting, the longest for" in queue("show")
    assert '"paused": false' in queue("resume", "--json")
