"""The log: readable by people or programs, and no secret in it whatever happens."""

import io
import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from api import logs
from api.examples import SPEC
from api.logs import LogFormat
from services import keys, leases
from services.scrubbing import scrubbed
from services.settings import Settings
from tests.api.own_log import kept_log
from tests.api.serving import FakeBackground, running

SECRETS = [
    "gw_" + "a" * 16 + "_" + "S3cret-_x" * 5,
    "postgresql+psycopg://ghostwatt:p4ss:w0rd@x@db.internal:5432/ghostwatt",
    "host=db user=u password=hunter22 dbname=d",
    "Authorization: Bearer abc.def-ghi~jkl",
    "authorization: basic dXNlcjpwYXNzd29yZA==",
    '{"api_key": "k-1234567890"}',
    "RAY_AUTH_TOKEN=f00dcafe12345678",
    "{'GHOSTWATT_INGEST_TOKEN': 'gw_aaaaaaaaaaaaaaaa_0123456789abcdef'}",
]
PARTS = [
    "S3cret", "p4ss", "w0rd", "hunter22", "abc.def", "dXNlcj", "k-1234567890", "f00dcafe", "0123456789abcdef",
]  # fmt: skip


@contextmanager
def configured(form: LogFormat) -> Iterator[io.StringIO]:
    """What is written, with the log as the service's process sets it up."""
    stream = io.StringIO()
    with kept_log():
        logs.configure(form, stream=stream)
        yield stream


@pytest.fixture(params=["text", "json"])
def written(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """In either format."""
    with configured(request.param) as stream:
        yield stream


@pytest.mark.parametrize(
    "secret",
    [
        "PASSWORD=hunter22",
        "PaSsWd: hunter22",
        "\u017fecret=hunter22",
        "api\u212aey=hunter22",
        "HTTP://me:hunter22@x",
    ],
)
def test_a_secret_is_found_however_its_name_is_written(secret: str) -> None:
    assert "hunter22" not in scrubbed(f"a line with {secret} in it")


def test_a_line_says_when_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs.TextFormatter, "converter", time.gmtime)
    formatter, plain = logs.TextFormatter(), logging.Formatter()
    for created in (1_700_000_000.25, 1_700_000_000.9997, 1_700_000_061.0):
        record = logging.makeLogRecord({"created": created, "msecs": created % 1 * 1_000})
        plain.converter = time.gmtime
        assert formatter.formatTime(record) == plain.formatTime(record)


@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_are_blotted_out_of_messages_arguments_and_tracebacks(
    written: io.StringIO, secret: str
) -> None:
    log = logging.getLogger("ghostwatt.test")
    log.warning(secret)
    log.warning("got %s and %r", secret, {"x": secret})
    try:
        raise RuntimeError(f"failed with {secret}")
    except RuntimeError:
        log.exception("it failed", extra={"path": f"/{secret}"})
    text = written.getvalue()
    assert text.count("[secret]") >= 4
    assert not [part for part in PARTS if part in text]


@pytest.mark.parametrize(
    "harmless",
    [
        "http://127.0.0.1:8411/docs",
        "the queue has a token bucket: 3 of 10",
        "exp-01jd0000000000000000000000: running (password not needed)",
        "request 5f0c8f9e2d3b4a6c8e7f failed",
    ],
)
def test_what_is_no_secret_stays(harmless: str) -> None:
    assert scrubbed(harmless) == harmless


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_json_line_says_who_asked_what_and_how_it_went(tmp_path: Path) -> None:
    with configured("json") as stream, running(Settings(data_dir=tmp_path), FakeBackground()) as service:
        identifier = service.submit()
        service.http.get(f"/v1/experiments/{identifier}", headers={"X-Request-ID": "r-1"})
        service.http.get(f"/v1/runs/{identifier}-r000-a00", headers={"X-Request-ID": "r-2"})
        service.http.get("/nothing%0Aforged", headers={"X-Request-ID": "r-3"})
    found = {line["request_id"]: line for line in lines(stream) if line["logger"] == "ghostwatt.access"}
    first = found["r-1"]
    assert {name: first[name] for name in ("method", "route", "status", "experiment_id", "level")} == {
        "method": "GET",
        "route": "/v1/experiments/{experiment_id}",
        "status": 200,
        "experiment_id": identifier,
        "level": "info",
    }
    assert first["duration_ms"] > 0
    assert first["time"].endswith("+00:00")
    assert found["r-2"]["run_id"] == f"{identifier}-r000-a00"
    assert "route" not in found["r-3"]
    assert found["r-3"]["status"] == 404


def test_no_secret_of_a_living_service_reaches_its_log(tmp_path: Path, written: io.StringIO) -> None:
    settings = Settings(data_dir=tmp_path, require_keys=True)
    with running(settings, FakeBackground()) as service:
        key = keys.create(service.database, "mine", [keys.Scope.SUBMIT]).token
        wrong = key[:-4] + "AAAA"
        mine = {"Authorization": f"Bearer {key}"}
        spec = {**SPEC, "description": "the body's own words"}
        assert service.http.post("/v1/experiments", json=spec, headers=mine).status_code == 202
        assert (
            service.http.get("/v1/experiments", headers={"Authorization": f"Bearer {wrong}"}).status_code
            == 401
        )
        assert service.http.get("/v1/experiments", auth=("anyone", key)).status_code == 200
        assert service.http.get(f"/v1/experiments/{key}", headers=mine).status_code in (404, 422)
        assert service.http.get("/v1/experiments", params={"name": key}, headers=mine).status_code in (
            200,
            422,
        )
        lease = leases.claim(service.database, "test", 60)
        assert lease is not None
        token = leases.begin_attempt(service.database, lease).token
        path = f"/internal/v1/experiments/{lease.experiment_id}/assignment"
        assert service.http.get(path, headers={"Authorization": f"Bearer {token}"}).status_code == 200
        batch = {"experiment_id": lease.experiment_id, "events": [{"wrong": token}]}
        assert (
            service.http.post(
                "/internal/v1/events", json=batch, headers={"Authorization": f"Bearer {token}"}
            ).status_code
            == 422
        )
    text = written.getvalue()
    assert "POST" in text
    for secret in (key, wrong, token):
        assert secret.split("_", 2)[2][:20] not in text
        assert secret[20:] not in text
    assert "the body's own words" not in text


def test_the_error_of_a_database_with_a_password_hides_it(tmp_path: Path, written: io.StringIO) -> None:
    url = "postgresql://ghostwatt:hunter22@127.0.0.1:1/none"
    with (
        pytest.raises(AssertionError, match="did not start"),
        running(Settings(data_dir=tmp_path, database_url=url), FakeBackground()),
    ):
        pass
    assert "hunter22" not in written.getvalue()
