"""Whatever is sent: an answer, soon, never a 5xx, and a problem document for every refusal."""

import copy
import json
import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from sqlalchemy import URL, create_engine, text

from api.examples import SPEC
from phantom_core.protocol import Assignment
from services import leases
from services.settings import Settings
from tests.api.serving import FakeBackground, Service, running
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
            connection.execute(text("DROP DATABASE ghostwatt_hostile WITH (FORCE)"))
        administrator.dispose()


numbers = st.one_of(
    st.integers(),
    st.integers(min_value=-(10**400), max_value=10**400),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0, -1, 2**31, 2**53, 2**63, 2**64, 1e-400, 1e308, -0.0]),
)
texts = st.one_of(
    st.text(alphabet=st.characters(exclude_categories=()), max_size=30),
    st.sampled_from(
        ["", "\x00", "\ud800", "a\x00b", "../../etc/passwd", "'; DROP TABLE runs; --", "{{7*7}}", "a" * 5_000]
    ),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
documents = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(texts, inner, max_size=5)),
    max_leaves=20,
)


def paths(document: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    found = [here]
    items = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    for key, value in items:
        found += paths(value, (*here, key))
    return found


@st.composite
def mutated(draw: st.DrawFn, document: Any) -> Any:
    """A document that is nearly right: something replaced, removed, doubled or added."""
    changed = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from([path for path in paths(changed) if path]))
        holder = changed
        for key in place[:-1]:
            holder = holder[key]
        what = draw(st.sampled_from(["replace", "remove", "add", "double"]))
        if what == "replace":
            holder[place[-1]] = draw(documents)
        elif what == "remove":
            del holder[place[-1]]
        elif isinstance(holder, dict):
            holder[draw(texts)] = draw(documents) if what == "add" else copy.deepcopy(holder[place[-1]])
        else:
            holder.append(draw(documents) if what == "add" else copy.deepcopy(holder[place[-1]]))
        if not [path for path in paths(changed) if path]:
            break
    return changed


def check(response: httpx.Response) -> httpx.Response:
    assert response.status_code < 500, response.text
    assert response.elapsed.total_seconds() < 20
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
    quoted = "".join(f"%{byte:02x}" for byte in path.encode("utf-8", "surrogatepass"))[:3_000]
    for start in (
        "/",
        "/v1/experiments/",
        "/v1/runs/",
        "/experiments/",
        "/static/",
        "/internal/v1/experiments/",
    ):
        response = service.http.request(method, start + quoted)
        assert response.status_code < 500, response.text


names = st.sampled_from(
    ["state", "name", "tag", "strategy", "submitted_after", "cursor", "limit", "colour", "baseline"]
)


@MODEST
@given(query=st.lists(st.tuples(names, st.one_of(texts, numbers.map(str))), max_size=4))
def test_any_query(service: Service, query: list[tuple[str, str]]) -> None:
    encoded = [(name, value.encode("utf-8", "replace")[:500]) for name, value in query]
    for path in ("/v1/experiments", "/v1/experiments/exp-x/comparison", "/v1/experiments/exp-x/runs", "/"):
        check(service.http.get(path, params=encoded))  # type: ignore[arg-type]


@MODEST
@given(
    name=st.sampled_from(
        ["Idempotency-Key", "If-None-Match", "X-Request-ID", "Authorization", "Origin", "Accept", "Host"]
    ),
    value=st.binary(max_size=60).map(lambda raw: bytes(byte for byte in raw if byte not in b"\r\n\x00")),
)
def test_any_header(service: Service, name: str, value: bytes) -> None:
    headers = [(name.encode(), value.strip()), (b"content-type", b"application/json")]
    try:
        check(service.http.post("/v1/experiments:validate", content=b"{}", headers=headers))
        check(service.http.get("/v1/experiments?limit=1", headers=headers))
    except httpx.LocalProtocolError:
        return


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
    events = [*simulated.started(), *simulated.run(run)][:12]
    return token, json.loads(simulated.batch(events).model_dump_json())


@examples(MODEST, max_examples=2 * MODEST.max_examples)
@given(data=st.data())
def test_events_that_are_nearly_right(service: Service, job: tuple[str, Any], data: st.DataObject) -> None:
    token, batch = job
    document = data.draw(mutated(batch))
    headers = {"Authorization": f"Bearer {token}"}
    post(service, "/internal/v1/events", json.dumps(document).encode(), **headers)
