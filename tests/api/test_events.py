"""Event streams: nothing lost, nothing twice, whatever breaks; and what they cost."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from sqlalchemy import URL

from api.streams import Limits
from client.models import Occurrence
from services import experiments, keys, leases
from services.database import Database
from services.settings import Settings
from services.states import ExperimentState
from tests.api.serving import FakeBackground, Service, running
from tests.api.watching import told, watched
from tests.services.simulated_job import begun, deliver, ran, spec

QUICK = Limits(interval_s=0.02, heartbeat_s=0.1)


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Service]:
    with running(Settings(data_dir=tmp_path), FakeBackground(), limits=QUICK) as service:
        yield service


def test_an_experiment_is_told_from_its_start_to_its_end(quick: Service) -> None:
    identifier, _, job = begun(quick.database)
    found = []
    with watched(quick.http, identifier) as stream:
        found.append(next(stream))
        for event in job.everything():
            deliver(quick.database, job, [event])
        found += list(stream)
    kinds = [each.kind for each in found]
    assert found[0].data["to"] == "queued"
    assert found[-1].is_last
    assert found[-1].data["to"] == "succeeded"
    assert kinds.count("round_finished") == 3
    assert kinds.count("run_finished") == 6
    assert [each.id for each in found] == sorted({each.id for each in found})
    assert told(quick.http, identifier) == found


def test_a_stream_goes_on_after_any_event(quick: Service) -> None:
    identifier = ran(quick.database)
    whole = told(quick.http, identifier)
    for position, event in enumerate(whole[:-1], start=1):
        assert told(quick.http, identifier, after=event.id) == whole[position:]
    ended = quick.http.get(
        f"/v1/experiments/{identifier}/events", headers={"Last-Event-ID": str(whole[-1].id)}
    )
    assert (ended.status_code, ended.content) == (204, b"")
    again = quick.http.get(f"/v1/experiments/{identifier}/events", params={"after": str(whole[-2].id)})
    assert again.text.count("\nid: ") == 1


def test_a_stream_that_is_cut_again_and_again_loses_nothing_and_repeats_nothing(quick: Service) -> None:
    identifier, _, job = begun(quick.database)
    found: list[Occurrence] = []
    after = None
    events = job.everything()
    while not found or not found[-1].is_last:
        with watched(quick.http, identifier, after) as stream:
            for _, event in zip(range(2), stream, strict=False):
                found.append(event)
                after = event.id
                deliver(quick.database, job, [events.pop(0) for _ in range(min(5, len(events)))])
    assert found == told(quick.http, identifier)


def test_another_process_goes_on_where_one_stopped(quick: Service, tmp_path: Path) -> None:
    identifier, _, job = begun(quick.database)
    settings = Settings(data_dir=tmp_path)
    with running(settings, FakeBackground(), limits=QUICK) as other:
        with watched(quick.http, identifier) as stream:
            first = [next(stream) for _ in range(3)]
        with watched(other.http, identifier, first[-1].id) as stream:
            deliver(quick.database, job, job.everything())
            rest = list(stream)
    assert first + rest == told(quick.http, identifier)


def test_many_watchers_see_the_same_and_cost_one_look(
    quick: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    from services import watching

    identifier, _, job = begun(quick.database)
    looks: list[int] = []
    look = watching.changes

    def counted(db: Database, known: dict[str, watching.Known]) -> dict[str, watching.Change]:
        looks.append(len(known))
        return look(db, known)

    monkeypatch.setattr(watching, "changes", counted)
    with ExitStack() as stack:
        streams = [stack.enter_context(watched(quick.http, identifier)) for _ in range(50)]
        first = [next(stream) for stream in streams]
        deliver(quick.database, job, job.everything())
        found = [[event, *stream] for event, stream in zip(first, streams, strict=True)]
    assert set(looks) == {1}
    assert all(each == found[0] for each in found)
    assert found[0][-1].is_last


def test_streams_that_wait_hold_no_session(tmp_path: Path, migrated_postgresql: URL) -> None:
    """More watchers than the pool has connections, and the service answers as ever."""
    settings = Settings(
        data_dir=tmp_path, database_url=migrated_postgresql.render_as_string(hide_password=False)
    )
    with running(settings, FakeBackground(), limits=QUICK) as service, ExitStack() as stack:
        identifier = service.submit()
        limits = httpx.Limits(max_connections=None)
        http = stack.enter_context(httpx.Client(base_url=service.url, timeout=30, limits=limits))
        streams = [stack.enter_context(watched(http, identifier)) for _ in range(40)]
        assert {next(stream).kind for stream in streams} == {"state"}
        for _ in range(40):
            assert service.http.get(f"/v1/experiments/{identifier}").status_code == 200
        assert service.http.delete(f"/v1/experiments/{identifier}").status_code == 204


def test_a_quiet_stream_beats(quick: Service) -> None:
    identifier = quick.submit()
    with quick.http.stream("GET", f"/v1/experiments/{identifier}/events") as response:
        beats = 0
        for line in response.iter_lines():
            beats += line == ": heartbeat"
            if beats == 3:
                break
    assert beats == 3


def test_a_stream_ends_with_its_time_and_can_be_resumed(tmp_path: Path) -> None:
    limits = Limits(interval_s=0.02, heartbeat_s=0.05, lifetime_s=0.5)
    with running(Settings(data_dir=tmp_path), FakeBackground(), limits=limits) as service:
        identifier = service.submit()
        # A stream may end before it has looked: who watches comes again.
        while not (begun_ := told(service.http, identifier)):
            pass
        (first,) = begun_
        assert told(service.http, identifier, first.id) == []
        experiments.request_cancel(service.database, identifier)
        while not (later := told(service.http, identifier, first.id)):
            pass
        assert [each.kind for each in later] == ["cancel_requested", "state"]


def test_no_more_streams_than_allowed(tmp_path: Path) -> None:
    limits = Limits(interval_s=0.02, heartbeat_s=0.05, streams=3, streams_per_caller=2)
    with running(Settings(data_dir=tmp_path), FakeBackground(), limits=limits) as service:
        identifier = service.submit()
        path = f"/v1/experiments/{identifier}/events"
        key = keys.create(service.database, "other", [keys.Scope.READ]).token
        with ExitStack() as stack:
            streams = [stack.enter_context(watched(service.http, identifier)) for _ in range(2)]
            assert {next(stream).kind for stream in streams} == {"state"}
            refused = service.http.get(path)
            assert (refused.status_code, refused.json()["code"]) == (429, "too-many-streams")
            assert int(refused.headers["Retry-After"]) > 0
            theirs = stack.enter_context(watched(service.http, identifier, Authorization=f"Bearer {key}"))
            assert next(theirs).kind == "state"
            other = service.http.get(path, headers={"Authorization": f"Bearer {key}"})
            assert (other.status_code, other.json()["code"]) == (503, "too-many-streams")
        until(lambda: stream_count(service) == 0)
        with watched(service.http, identifier) as stream:
            next(stream)


def test_a_watcher_that_leaves_gives_its_place_back(quick: Service) -> None:
    identifier = quick.submit()
    for _ in range(3):
        with watched(quick.http, identifier) as stream:
            next(stream)
            assert stream_count(quick) == 1
        until(lambda: stream_count(quick) == 0)


@pytest.mark.parametrize("given", ["x", "-1", "1.5", "9" * 30, "0x1"])
def test_an_id_that_is_none_is_refused(quick: Service, given: str) -> None:
    path = f"/v1/experiments/{quick.submit()}/events"
    for request in ({"headers": {"Last-Event-ID": given}}, {"params": {"after": given}}):
        response = quick.http.get(path, **request)  # type: ignore[arg-type]
        assert response.status_code == 422
        assert response.headers["content-type"] == "application/problem+json"


def test_an_id_of_another_experiment_is_refused_since_what_follows_it_is_unknown(quick: Service) -> None:
    theirs = experiments.submit(quick.database, spec())
    with watched(quick.http, theirs) as stream:
        event = next(stream).id
    response = quick.http.get(
        f"/v1/experiments/{quick.submit()}/events", headers={"Last-Event-ID": str(event)}
    )
    assert (response.status_code, response.json()["code"]) == (422, "invalid-query")


def test_unknown_experiments_and_parameters_are_refused(quick: Service) -> None:
    assert quick.http.get("/v1/experiments/exp-x/events").status_code == 404
    assert quick.http.get(f"/v1/experiments/{quick.submit()}/events?colour=red").status_code == 422


def test_a_deleted_experiment_ends_its_streams(quick: Service) -> None:
    identifier = quick.submit()
    with quick.http.stream("GET", f"/v1/experiments/{identifier}/events") as response:
        pieces = response.iter_text()
        next(pieces)
        assert quick.http.delete(f"/v1/experiments/{identifier}").status_code == 204
        rest = "".join(pieces)
    assert "event: deleted" in rest or '"to":"cancelled"' in rest
    assert quick.http.get(f"/v1/experiments/{identifier}/events").status_code == 404


def test_a_key_is_needed_where_one_is(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, require_keys=True)
    with running(settings, FakeBackground(), limits=QUICK) as service:
        identifier = experiments.submit(service.database, spec())
        path = f"/v1/experiments/{identifier}/events"
        assert service.http.get(path).status_code == 401
        lease = leases.claim(service.database, "test", 60)
        assert lease is not None
        token = leases.begin_attempt(service.database, lease).token
        assert service.http.get(path, headers={"Authorization": f"Bearer {token}"}).status_code == 403
        key = keys.create(service.database, "reader", [keys.Scope.READ]).token
        with watched(service.http, identifier, Authorization=f"Bearer {key}") as stream:
            assert next(stream).data["to"] == ExperimentState.QUEUED


def test_a_service_that_ends_does_not_wait_for_its_watchers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ended = threading.Event()

    def watch(url: str, identifier: str, begun: threading.Event) -> None:
        with httpx.Client(base_url=url, timeout=30) as http, watched(http, identifier) as stream:
            next(stream)
            begun.set()
            assert list(stream) == []
        ended.set()

    begun_ = threading.Event()
    with running(Settings(data_dir=tmp_path), FakeBackground()) as service:
        watcher = threading.Thread(target=watch, args=(service.url, service.submit(), begun_))
        watcher.start()
        assert begun_.wait(120)
    watcher.join(120)
    # A whole end, not a connection that was cut when the server's patience was over.
    assert ended.is_set()
    assert "timeout graceful shutdown exceeded" not in caplog.text


def test_a_database_that_is_away_for_a_moment_loses_nothing(
    quick: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    from services import watching
    from services.errors import DatabaseUnavailable

    identifier, _, job = begun(quick.database)
    look, failures, is_back = watching.changes, [0], threading.Event()

    def failing(db: Database, known: dict[str, watching.Known]) -> dict[str, watching.Change]:
        if not is_back.is_set():
            failures[0] += 1
            raise DatabaseUnavailable("gone for a moment")
        return look(db, known)

    with watched(quick.http, identifier) as stream:
        first = next(stream)
        monkeypatch.setattr(watching, "changes", failing)
        until(lambda: failures[0] > 0)
        deliver(quick.database, job, job.everything())
        seen = failures[0]
        until(lambda: failures[0] > seen + 2)
        is_back.set()
        found = [first, *stream]
    assert found == told(quick.http, identifier)


def test_what_is_kept_for_those_who_wait_is_bounded_and_the_slow_read_the_log(tmp_path: Path) -> None:
    limits = Limits(interval_s=0.02, heartbeat_s=0.1, kept_bytes=600)
    with running(Settings(data_dir=tmp_path), FakeBackground(), limits=limits) as service:
        identifier, _, job = begun(service.database)
        with watched(service.http, identifier) as stream:
            found = [next(stream)]
            deliver(service.database, job, job.everything())
            found += list(stream)
        assert found == told(service.http, identifier)


def stream_count(service: Service) -> int:
    return service.streams.count


def until(condition: Callable[[], bool], deadline_s: float = 120) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
