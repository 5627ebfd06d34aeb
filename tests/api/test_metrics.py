"""Figures for Prometheus: right, and with labels that callers can't multiply."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from phantom_core.protocol import Assignment
from services import heartbeats, keys, leases, switches
from services.database import Database
from services.errors import DatabaseUnavailable
from services.settings import Settings
from tests.api.serving import FakeBackground, Service, Start, running
from tests.api.watching import watched
from tests.services.simulated_job import SimulatedJob, begun, deliver


def samples(service: Service) -> Iterator[Sample]:
    response = service.http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    for family in text_string_to_metric_families(response.text):
        yield from family.samples


def value(service: Service, name: str, **labels: str) -> float | None:
    found = [
        each.value for each in samples(service) if each.name == name and labels.items() <= each.labels.items()
    ]
    return found[0] if found else None


def test_requests_are_counted_by_template_method_and_status(start: Start) -> None:
    service = start()
    identifier = service.submit()
    for _ in range(3):
        service.http.get(f"/v1/experiments/{identifier}")
    service.http.get("/v1/experiments/exp-none")
    route = "/v1/experiments/{experiment_id}"
    total = "ghostwatt_http_requests_total"
    assert value(service, total, route=route, method="GET", status="200") == 3
    assert value(service, total, route=route, method="GET", status="404") == 1
    assert value(service, total, route="/v1/experiments", method="POST", status="202") == 1
    assert value(service, "ghostwatt_http_request_seconds_count", route=route) == 4
    fast = value(service, "ghostwatt_http_request_seconds_bucket", route=route, le="+Inf")
    assert fast == 4


def test_callers_can_not_make_labels(start: Start) -> None:
    service = start()

    def labels() -> set[tuple[tuple[str, str], ...]]:
        return {tuple(sorted(each.labels.items())) for each in samples(service)}

    def ask(numbers: range) -> None:
        for number in numbers:
            service.http.get(f"/nothing/{number}")
            service.http.get(f"/v1/experiments/exp-{number}")
            service.http.request(f"METHOD{number}", "/v1/experiments")
            service.http.get(f"/static/{number}.css")
            service.http.get("/healthz", headers={"Host": f"evil{number}.example"})

    ask(range(1))
    labels()
    before = labels()
    ask(range(1, 20))
    assert labels() == before
    assert {dict(found).get("method") for found in before} <= {None, "GET", "POST", "other"}


def test_the_queue_and_the_leases_are_told(start: Start) -> None:
    service = start()
    assert value(service, "ghostwatt_experiments", state="queued") == 0
    assert value(service, "ghostwatt_oldest_queued_seconds") is None
    assert value(service, "ghostwatt_oldest_lease_seconds") is None
    assert value(service, "ghostwatt_dispatcher_heartbeat_age_seconds") is None
    service.submit()
    service.submit()
    switches.pause_queue(service.database, "maintenance")
    assert leases.claim(service.database, "test", 60) is None
    switches.resume_queue(service.database)
    assert leases.claim(service.database, "test", 0.001) is not None
    heartbeats.beat(service.database, "test")
    switches.pause_queue(service.database, "maintenance")
    assert value(service, "ghostwatt_experiments", state="queued") == 1
    assert value(service, "ghostwatt_experiments", state="leased") == 1
    assert (value(service, "ghostwatt_oldest_queued_seconds") or -1) >= 0
    assert (value(service, "ghostwatt_oldest_lease_seconds") or -1) >= 0
    assert (value(service, "ghostwatt_dispatcher_heartbeat_age_seconds") or -1) >= 0
    assert value(service, "ghostwatt_expired_leases") == 1
    assert value(service, "ghostwatt_queue_paused") == 1


def test_ingest_is_counted_once_by_what_became_of_it(start: Start) -> None:
    service = start()
    service.submit(measurement={"rounds": 1})
    lease = leases.claim(service.database, "test", 60)
    assert lease is not None
    token = leases.begin_attempt(service.database, lease).token
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    answer = service.http.get(f"/internal/v1/experiments/{lease.experiment_id}/assignment", headers=headers)
    job = SimulatedJob(Assignment.model_validate_json(answer.content))
    batch = job.batch(job.everything())
    points = sum(len(event.payload.points) for event in batch.events if event.payload.kind == "metrics")
    for _ in range(2):
        service.http.post(
            "/internal/v1/events", content=batch.model_dump_json(), headers=headers
        ).raise_for_status()
    assert value(service, "ghostwatt_ingest_events_total", outcome="accepted") == len(batch.events)
    assert value(service, "ghostwatt_ingest_events_total", outcome="duplicate") == len(batch.events)
    assert value(service, "ghostwatt_ingest_points_total", series="metric") == 2 * points
    assert (value(service, "ghostwatt_ingest_points_total", series="power") or 0) > 0


def test_streams_and_connections_are_told(start: Start) -> None:
    service = start()
    identifier, _, job = begun(service.database)
    assert value(service, "ghostwatt_event_streams") == 0
    with watched(service.http, identifier) as stream:
        next(stream)
        assert value(service, "ghostwatt_event_streams") == 1
        deliver(service.database, job, job.everything())
        assert list(stream)
    limit = value(service, "ghostwatt_database_connections", state="limit")
    assert limit is not None
    assert 0 <= (value(service, "ghostwatt_database_connections", state="in_use") or 0) <= limit


def test_a_database_that_is_away_leaves_its_gauges_out(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from services import census

    def gone(_database: Database) -> None:
        raise DatabaseUnavailable("password=secret-of-the-database")

    service = start()
    monkeypatch.setattr(census, "take", gone)
    assert value(service, "ghostwatt_database_up") == 0
    assert value(service, "ghostwatt_experiments") is None
    assert "secret" not in service.http.get("/metrics").text


def test_a_key_is_needed_where_every_other_address_needs_one(tmp_path: Path) -> None:
    with running(Settings(data_dir=tmp_path, require_keys=True), FakeBackground()) as service:
        assert service.http.get("/metrics").status_code == 401
        key = keys.create(service.database, "prometheus", [keys.Scope.READ]).token
        service.http.headers["Authorization"] = f"Bearer {key}"
        assert value(service, "ghostwatt_database_up") == 1
        assert key not in service.http.get("/metrics").text


def test_two_apps_of_one_process_count_apart(start: Start, tmp_path: Path) -> None:
    first = start()
    with running(Settings(data_dir=tmp_path), FakeBackground()) as second:
        for _ in range(3):
            first.http.get("/healthz")
        name = "ghostwatt_http_requests_total"
        assert value(first, name, route="/healthz") == 3
        assert value(second, name, route="/healthz") is None
