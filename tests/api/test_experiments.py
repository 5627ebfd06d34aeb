import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from api.examples import SPEC
from api.routes.submissions import is_small
from phantom_core.checks import Capacity
from phantom_core.plan import make_plan, schedule
from phantom_core.spec import ExperimentSpec
from services import admission_groups, admission_writes, keys
from services.admissions import Admission
from services.database import Database
from services.ids import EXPERIMENT_ID
from services.settings import Settings
from tests.api.serving import FakeBackground, Service, running


def test_a_submission_is_accepted_with_its_place_and_state(service: Service) -> None:
    response = service.http.post("/v1/experiments", json=SPEC)
    assert response.status_code == 202
    body = response.json()
    assert EXPERIMENT_ID.fullmatch(body["id"])
    assert body["state"] == "queued"
    assert response.headers["Location"] == f"/v1/experiments/{body['id']}"
    found = service.http.get(response.headers["Location"]).json()
    assert found["name"] == SPEC["name"]
    assert found["spec"]["model"]["width"] == SPEC["model"]["width"]
    assert len(found["arms"]) > len(SPEC["arms"])


def test_yaml_is_the_same_experiment(service: Service) -> None:
    text = yaml.safe_dump(SPEC)
    headers = {"Content-Type": "application/yaml; charset=utf-8"}
    response = service.http.post("/v1/experiments", content=text, headers=headers)
    assert response.status_code == 202, response.text
    from_json = service.http.get(f"/v1/experiments/{service.submit()}").json()
    assert service.http.get(response.headers["Location"]).json()["spec"] == from_json["spec"]


def test_a_wrong_field_is_named_with_its_value_and_the_way_out(service: Service) -> None:
    response = service.http.post("/v1/experiments", json={**SPEC, "model": {"width": -3}})
    assert response.status_code == 422
    [problem] = response.json()["errors"]
    assert (problem["field"], problem["value"]) == ("model.width", "-3")
    assert problem["limit"] == "1"


def test_fields_that_do_not_fit_together_are_named(service: Service) -> None:
    arms = [{"name": "phantom", "strategy": "phantom", "ghosts": 300, "world_size": 2}]
    response = service.http.post("/v1/experiments", json={**SPEC, "arms": arms})
    assert response.status_code == 422
    body = response.json()
    assert body["code"] == "invalid-spec"
    assert any(problem["field"].startswith("arms.0") for problem in body["errors"])


def test_unknown_fields_are_refused(service: Service) -> None:
    response = service.http.post("/v1/experiments", json={**SPEC, "entrypoint": "rm -rf /"})
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"] == "entrypoint"


def test_the_same_key_makes_one_experiment(service: Service) -> None:
    headers = {"Idempotency-Key": "build-77"}
    first = service.http.post("/v1/experiments", json=SPEC, headers=headers).json()["id"]
    assert service.http.post("/v1/experiments", json=SPEC, headers=headers).json()["id"] == first
    other = service.http.post("/v1/experiments", json={**SPEC, "name": "another"}, headers=headers)
    assert other.status_code == 422
    assert other.json()["code"] == "idempotency-conflict"


@pytest.mark.parametrize("controls", [True, False], ids=["in a thread", "in the event loop"])
def test_a_key_gives_its_answer_again_though_the_cluster_has_shrunk(service: Service, controls: bool) -> None:
    spec = {**SPEC, "controls": controls}
    headers = {"Idempotency-Key": f"before it shrank {controls}".replace(" ", "-")}
    first = service.http.post("/v1/experiments", json=spec, headers=headers).json()["id"]
    service.background.has = Capacity(cpus=0.5, gpus=0, cpu_memory_bytes=2**30)
    try:
        again = service.http.post("/v1/experiments", json=spec, headers=headers)
        assert (again.status_code, again.json()) == (202, {"id": first, "state": "queued"})
        other = service.http.post("/v1/experiments", json={**spec, "name": "other"}, headers=headers)
        assert (other.status_code, other.json()["code"]) == (422, "idempotency-conflict")
        new = service.http.post("/v1/experiments", json=spec, headers={"Idempotency-Key": f"new-{controls}"})
        assert (new.status_code, new.json()["code"]) == (422, "invalid-spec")
    finally:
        service.background.has = None


def test_many_at_once_with_one_key_make_one_experiment(service: Service) -> None:
    def send(number: int) -> tuple[int, dict[str, Any]]:
        spec = {**SPEC, "name": "another"} if number % 4 == 3 else {**SPEC, "name": "crowd"}
        response = httpx.post(
            f"{service.url}/v1/experiments", json=spec, headers={"Idempotency-Key": "crowd"}, timeout=60
        )
        return response.status_code, response.json()

    assert send(0)[0] == 202
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(send, range(64)))
    assert {status for status, _ in answers} <= {202, 409, 422}
    made = {body["id"] for status, body in answers if status == 202}
    assert len(made) == 1
    codes = {body["code"] for status, body in answers if status != 202}
    assert codes <= {"request-in-flight", "idempotency-conflict"}
    listed = service.http.get("/v1/experiments", params={"name": "crowd"}).json()["items"]
    assert {each["id"] for each in listed} == made


def test_a_repeat_before_the_answer_is_told_so_and_gets_it_later(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, admit = threading.Event(), threading.Event(), admission_writes.admit

    def slow(db: Database, admissions: Sequence[Admission]) -> frozenset[str]:
        begun.set()
        assert go_on.wait(30)
        return admit(db, admissions)

    def send(**headers: str) -> httpx.Response:
        return httpx.post(f"{service.url}/v1/experiments", json=SPEC, headers=headers, timeout=60)

    monkeypatch.setattr(admission_groups, "admit", slow)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(send, **{"Idempotency-Key": "slow"})
        assert begun.wait(30)
        repeat = send(**{"Idempotency-Key": "slow"})
        assert (repeat.status_code, repeat.json()["code"]) == (409, "request-in-flight")
        assert repeat.headers["retry-after"] == "1"
        go_on.set()
        made = first.result().json()["id"]
    assert send(**{"Idempotency-Key": "slow"}).json()["id"] == made


@pytest.mark.parametrize("key", ["", "k" * 256, "two words", "naïve"])
def test_a_key_that_can_not_be_one_is_refused(service: Service, key: str) -> None:
    headers = {b"Idempotency-Key": key.encode()}
    refused = service.http.post("/v1/experiments", json=SPEC, headers=headers)
    assert refused.status_code == 422, refused.text
    assert refused.json()["errors"][0]["field"] == "header.idempotency-key"


@pytest.mark.parametrize(
    "changes",
    [
        {"controls": False, "measurement": {"rounds": 3}},
        {"controls": False, "measurement": {"rounds": 200}},
        {"controls": True, "measurement": {"rounds": 3}},
        {"controls": False, "measurement": {"rounds": 3}, "description": "long " * 1_000},
    ],
    ids=["small", "many runs", "with controls", "long text"],
)
def test_what_is_planned_in_a_thread_becomes_the_same_as_what_is_not(
    service: Service, changes: dict[str, Any]
) -> None:
    document = {**SPEC, **changes}
    place = service.http.post("/v1/experiments", json=document).headers["Location"]
    found = service.http.get(place).json()
    plan = make_plan(ExperimentSpec.model_validate(document))
    assert found["runs"] == {"queued": len(schedule(plan))}
    assert [arm["name"] for arm in found["arms"]] == [planned.name for planned in plan.arms]
    assert found["spec"]["description"] == document.get("description", "")


def test_what_takes_long_to_plan_is_not_planned_between_other_requests(service: Service) -> None:
    parse = ExperimentSpec.model_validate
    assert is_small(parse({**SPEC, "controls": False, "measurement": {"rounds": 3}}))
    assert not is_small(parse({**SPEC, "controls": False, "measurement": {"rounds": 200}}))
    assert not is_small(parse({**SPEC, "controls": True, "measurement": {"rounds": 3}}))


def test_a_key_of_another_caller_is_another_key(tmp_path: Path) -> None:
    with running(Settings(data_dir=tmp_path, require_keys=True), FakeBackground()) as service:
        made = set()
        for name in ("mine", "theirs"):
            key = keys.create(service.database, name, [keys.Scope.SUBMIT]).token
            headers = {"Idempotency-Key": "same", "Authorization": f"Bearer {key}"}
            response = service.http.post("/v1/experiments", json={**SPEC, "name": name}, headers=headers)
            assert response.status_code == 202
            made.add(response.json()["id"])
        assert len(made) == 2


def test_a_key_whose_experiment_was_deleted_makes_no_other(service: Service) -> None:
    headers = {"Idempotency-Key": "build-78"}
    first = service.http.post("/v1/experiments", json=SPEC, headers=headers).json()["id"]
    assert service.http.delete(f"/v1/experiments/{first}").status_code == 204
    again = service.http.post("/v1/experiments", json=SPEC, headers=headers)
    assert (again.status_code, again.json()["code"]) == (409, "already-deleted")


def test_lists_are_filtered_and_paged_without_gaps(service: Service) -> None:
    wanted = [service.submit(name=f"paged {number}", tags={"set": "paging"}) for number in range(5)]
    found, cursor = [], None
    for _ in range(3):
        query = {"tag": "set=paging", "limit": "2", **({"cursor": cursor} if cursor else {})}
        page = service.http.get("/v1/experiments", params=query).json()
        found += [experiment["id"] for experiment in page["items"]]
        cursor = page["next_cursor"]
    assert cursor is None
    assert found == wanted[::-1]


def test_a_cursor_of_another_question_is_refused(service: Service) -> None:
    for number in range(2):
        service.submit(name=f"cursor {number}")
    cursor = service.http.get("/v1/experiments", params={"name": "cursor", "limit": 1}).json()["next_cursor"]
    response = service.http.get("/v1/experiments", params={"name": "else", "limit": 1, "cursor": cursor})
    assert response.status_code == 422
    assert response.json()["code"] == "invalid-query"


def test_unknown_filters_are_refused(service: Service) -> None:
    response = service.http.get("/v1/experiments", params={"colour": "red"})
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"] == "query.colour"


def test_states_are_filters_too(service: Service) -> None:
    experiment = service.submit(name="to be cancelled")
    service.http.post(f"/v1/experiments/{experiment}/cancel")
    page = service.http.get("/v1/experiments", params=[("state", "cancelled"), ("state", "failed")]).json()
    assert experiment in [found["id"] for found in page["items"]]
    assert {found["state"] for found in page["items"]} <= {"cancelled", "failed"}


def test_a_queued_experiment_is_cancelled_at_once_and_again_without_harm(service: Service) -> None:
    experiment = service.submit()
    first = service.http.post(f"/v1/experiments/{experiment}/cancel")
    assert (first.status_code, first.json()["state"]) == (202, "cancelled")
    again = service.http.post(f"/v1/experiments/{experiment}/cancel")
    assert (again.status_code, again.json()["state"]) == (202, "cancelled")


def test_a_deleted_experiment_is_gone(service: Service) -> None:
    experiment = service.submit()
    assert service.http.delete(f"/v1/experiments/{experiment}").status_code == 204
    for path in ("", "/runs", "/comparison"):
        response = service.http.get(f"/v1/experiments/{experiment}{path}")
        assert response.status_code == 404
        assert response.json()["code"] == "not-found"


def test_what_has_not_changed_is_not_sent_again(service: Service) -> None:
    experiment = service.submit()
    service.http.post(f"/v1/experiments/{experiment}/cancel")
    first = service.http.get(f"/v1/experiments/{experiment}")
    again = service.http.get(
        f"/v1/experiments/{experiment}", headers={"If-None-Match": first.headers["ETag"]}
    )
    assert again.status_code == 304
    assert again.content == b""
    assert again.headers["ETag"] == first.headers["ETag"]
    other = service.http.get(f"/v1/experiments/{experiment}", headers={"If-None-Match": '"other"'})
    assert other.content == first.content


def test_validation_says_what_it_would_take(service: Service) -> None:
    body = service.http.post("/v1/experiments:validate", json=SPEC).json()
    assert body["valid"] is True
    assert body["ranks"] == 2
    assert body["runs"] == len(body["arms"]) * SPEC["measurement"]["rounds"]


def test_validation_of_a_spec_that_cannot_run_is_an_answer_not_an_error(service: Service) -> None:
    arms = [{"name": "phantom", "strategy": "phantom", "ghosts": 300, "world_size": 2}]
    response = service.http.post("/v1/experiments:validate", json={**SPEC, "arms": arms})
    assert response.status_code == 200
    assert response.json()["valid"] is False
    assert response.json()["problems"]
