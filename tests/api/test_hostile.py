"""Whatever is sent: an answer, soon, never a 5xx, and a problem document for every refusal."""

import json
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
import yaml
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from sqlalchemy import URL, create_engine, text

from api.examples import SPEC
from benchmarks.hostile_cases import (
    HEADER_NAMES,
    documents,
    event_ids,
    header_values,
    mutated,
    out_of_time,
    percent_encoded,
    queries,
    ranges,
    texts,
)
from phantom_core.protocol import Assignment
from services import job_logs, leases
from services.log_parts import LogPart
from services.settings import Settings
from tests.api.serving import FakeBackground, Service, running
from tests.postgresql_sessions import end_sessions
from tests.services.simulated_job import SimulatedJob

MODEST = examples(max_examples=int(os.environ.get("HOSTILE_EXAMPLES", "40")), deadline=None)
"""Examples per test; raise HOSTILE_EXAMPLES for a long hunt."""


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """On both databases: each stumbles over other things, SQLite over huge integers, PostgreSQL over NUL."""
    folder = tmp_path_factory.mktemp("hostile")
    if request.param == "sqlite":
        with running(Settings(data_dir=folder), FakeBackground()) as found:
            yield found
        return
    server: URL = request.getfixturevalue("postgresql_server")
    administrator = create_engine(server, isolation_level="AUTOCOMMIT")
    with administrator.connect() as connection:
        connection.execute(text("CREATE DATABASE ghostwatt_hostile"))
    url = server.set(database="ghostwatt_hostile").render_as_string(hide_password=False)
    try:
        with running(Settings(data_dir=folder, database_url=url), FakeBackground()) as found:
            yield found
    finally:
        with administrator.connect() as connection:
            end_sessions(connection, "ghostwatt_hostile")
            connection.execute(text("DROP DATABASE ghostwatt_hostile WITH (FORCE)"))
        administrator.dispose()


def check(response: httpx.Response) -> httpx.Response:
    assert response.status_code < 500, response.text
    assert response.elapsed.total_seconds() < 60
    if response.status_code >= 400:
        assert response.headers["content-type"] == "application/problem+json"
        body = response.json()
        assert body["detail"]
        assert len(response.content) < 200_000
    return response


def post(
    service: Service, path: str, content: bytes, kind: str = "application/json", **headers: str
) -> httpx.Response:
    return check(service.http.post(path, content=content, headers={"Content-Type": kind, **headers}))


@MODEST
@given(document=documents)
def test_any_json(service: Service, document: Any) -> None:
    response = post(service, "/v1/experiments", json.dumps(document).encode())
    assert response.status_code in (400, 422)


@MODEST
@given(document=mutated(SPEC))
def test_specs_that_are_nearly_right(service: Service, document: Any) -> None:
    post(service, "/v1/experiments:validate", json.dumps(document).encode())


@examples(MODEST, max_examples=40)
@given(document=mutated(SPEC))
def test_submissions_that_are_nearly_right(service: Service, document: Any) -> None:
    if isinstance(document.get("measurement"), dict):
        document["measurement"]["rounds"] = 1
    response = post(service, "/v1/experiments", json.dumps(document).encode())
    if response.status_code == 202:
        identifier = response.json()["id"]
        for path in ("", "/runs", "/comparison"):
            assert check(service.http.get(f"/v1/experiments/{identifier}{path}")).status_code == 200
        assert check(service.http.get(f"/experiments/{identifier}")).status_code == 200


@MODEST
@given(document=documents)
def test_any_yaml(service: Service, document: Any) -> None:
    text = yaml.safe_dump(document, allow_unicode=True)
    post(service, "/v1/experiments:validate", text.encode("utf-8", "surrogatepass"), "application/yaml")


@MODEST
@given(content=st.binary(max_size=300), kind=st.sampled_from(["application/json", "application/yaml"]))
def test_any_bytes(service: Service, content: bytes, kind: str) -> None:
    assert post(service, "/v1/experiments", content, kind).status_code in (400, 422)


@MODEST
@given(kind=st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), max_size=40))
def test_any_content_type(service: Service, kind: str) -> None:
    post(service, "/v1/experiments", b"{}", kind)


@MODEST
@given(path=texts, method=st.sampled_from(["GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS", "PATCH"]))
def test_any_address(service: Service, path: str, method: str) -> None:
    for start in (
        "/",
        "/v1/experiments/",
        "/v1/runs/",
        "/experiments/",
        "/static/",
        "/internal/v1/experiments/",
        "/v1/queue/",
        "/v1/findings/",
        "/metrics/",
    ):
        response = service.http.request(method, start + percent_encoded(path))
        assert response.status_code < 500, response.text


@MODEST
@given(query=queries)
def test_any_query(service: Service, query: list[tuple[str, str]]) -> None:
    # httpx would write bytes as Python does.
    encoded = urlencode([(name, value.encode("utf-8", "replace")[:500]) for name, value in query])
    for path in (
        *("/v1/experiments", "/v1/findings", "/v1/queue", "/metrics", "/"),
        *("/v1/experiments/exp-x/comparison", "/v1/experiments/exp-x/runs", "/v1/experiments/exp-x/events"),
    ):
        check(service.http.get(f"{path}?{encoded}"))


@MODEST
@given(name=st.sampled_from(HEADER_NAMES), value=header_values)
def test_any_header(service: Service, name: str, value: bytes) -> None:
    headers = [(name.encode(), value), (b"content-type", b"application/json")]
    try:
        check(service.http.post("/v1/experiments:validate", content=b"{}", headers=headers))
        for path in ("/v1/experiments?limit=1", "/v1/findings?limit=1", "/v1/queue", "/metrics"):
            check(service.http.get(path, headers=headers))
    except httpx.LocalProtocolError:
        return


@MODEST
@given(document=st.one_of(documents, mutated({"reason": "new driver"})))
def test_any_pause(service: Service, document: Any) -> None:
    response = post(service, "/v1/queue/pause", json.dumps(document).encode())
    assert response.status_code in (200, 400, 422)
    assert check(service.http.post("/v1/queue/resume")).status_code == 200


@pytest.fixture(scope="module")
def job(service: Service) -> tuple[str, Any]:
    """A job's token, and a batch that is right."""
    service.submit()
    lease = leases.claim(service.database, "test", 3_600)
    assert lease is not None
    token = leases.begin_attempt(service.database, lease).token
    headers = {"Authorization": f"Bearer {token}"}
    assignment = service.http.get(
        f"/internal/v1/experiments/{lease.experiment_id}/assignment", headers=headers
    )

    simulated = SimulatedJob(Assignment.model_validate_json(assignment.content))
    run = simulated.assignment.runs[0]
    job_logs.store(service.database, lease.experiment_id, 1, LogPart(0, b"line\n" * 1_000), ended=False)
    events = [*simulated.started(), *simulated.run(run)][:12]
    return token, json.loads(simulated.batch(events).model_dump_json())


@examples(MODEST, max_examples=2 * MODEST.max_examples)
@given(data=st.data())
def test_events_that_are_nearly_right(service: Service, job: tuple[str, Any], data: st.DataObject) -> None:
    token, batch = job
    document = data.draw(mutated(batch))
    headers = {"Authorization": f"Bearer {token}"}
    post(service, "/internal/v1/events", json.dumps(document).encode(), **headers)


@examples(MODEST, max_examples=2 * MODEST.max_examples)
@given(data=st.data())
def test_events_of_all_times_and_durations(
    service: Service, job: tuple[str, Any], data: st.DataObject
) -> None:
    token, batch = job
    document = data.draw(out_of_time(batch))
    headers = {"Authorization": f"Bearer {token}"}
    post(service, "/internal/v1/events", json.dumps(document).encode(), **headers)


@MODEST
@given(wanted=ranges, tail=st.one_of(st.none(), texts))
def test_any_range_of_a_log(service: Service, job: tuple[str, Any], wanted: str, tail: str | None) -> None:
    run_id = job[1]["events"][-1]["subject_id"]
    for path in (f"/v1/experiments/{job[1]['experiment_id']}/log", f"/v1/runs/{run_id}/log"):
        query = {} if tail is None else {"tail_bytes": tail.encode("utf-8", "replace")[:500]}
        response = check(service.http.get(f"{path}?{urlencode(query)}", headers={"Range": wanted.strip()}))
        assert response.status_code in (200, 206, 404, 416, 422)


@MODEST
@given(last=event_ids)
def test_any_place_in_a_stream(service: Service, job: tuple[str, Any], last: str) -> None:
    path = f"/v1/experiments/{job[1]['experiment_id']}/events"
    with service.http.stream("GET", path, headers={"Last-Event-ID": last}) as response:
        if response.status_code != 200:
            response.read()
        check_open(response)


def check_open(response: httpx.Response) -> None:
    """Of a stream there is only the beginning; a refusal is whole."""
    if response.status_code >= 400:
        assert response.status_code < 500
        assert response.headers["content-type"] == "application/problem+json"
