"""Events reach the service once each, whatever the network and the disk do in between."""

import errno
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from phantom_core.protocol import EVENT_ADAPTER, MetricPoint, Metrics, Progress
from phantom_core.spec.resources import ResourceSpec
from ray_jobs.environment import GroupEnvironment, JobEnvironment, JobError
from ray_jobs.reporter import ASKING_S, Reporter, fetch_assignment, open_service
from ray_jobs.spool import Spool
from tests.running import wait_until


class FakeService:
    """Keeps the bodies it accepts; answers what it is told to."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.bodies: list[dict[str, Any]] = []
        self.tokens: set[str | None] = set()
        self.living: dict[str, list[str]] = {}
        """What it says of services that live."""
        self.location: str | None = None
        """Where it sends whoever asks."""

    @property
    def received(self) -> list[tuple[str, int]]:
        return [(event["source"], event["seq"]) for body in self.bodies for event in body["events"]]


@contextmanager
def serving(service: FakeService) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            service.tokens.add(self.headers["Authorization"])
            status = service.answers.pop(0) if service.answers else 200
            if status == 200:
                service.bodies.append(body)
            self._answer(status)

        def do_GET(self) -> None:
            service.tokens.add(self.headers["Authorization"])
            told = service.living if self.path == "/internal/v1/services" else {}
            self._answer(service.answers.pop(0) if service.answers else 200, json.dumps(told).encode())

        def _answer(self, status: int, body: bytes = b"{}") -> None:
            self.send_response(status)
            if service.location is not None:
                self.send_header("Location", service.location)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def job(url: str) -> JobEnvironment:
    return JobEnvironment(url, "exp-1", "secret")


def progress(number: int) -> Progress:
    return Progress(message=f"event {number}", done=number, total=10)


def test_every_event_arrives_once_and_in_order_with_the_token(tmp_path: Path) -> None:
    service = FakeService()
    with serving(service) as url, Spool(tmp_path, "rank-0", "exp-1", 1) as spool:
        for number in range(450):
            spool.emit(progress(number))
        with Reporter(job(url), tmp_path, interval_s=60) as reporter:
            assert reporter.drain(60)
            assert reporter.drain(60)
    assert service.received == [("rank-0", seq) for seq in range(450)]
    assert service.tokens == {"Bearer secret"}


def test_failed_requests_are_sent_again(tmp_path: Path) -> None:
    service = FakeService()
    service.answers = [503, 500, 429]
    with serving(service) as url, Spool(tmp_path, "rank-0", "exp-1", 1) as spool:
        spool.emit(progress(1))
        with Reporter(job(url), tmp_path, interval_s=60) as reporter:
            assert reporter.drain(20)
    assert service.received == [("rank-0", 0)]


def test_an_unreachable_service_leaves_events_on_disk_for_the_next_reporter(tmp_path: Path) -> None:
    with Spool(tmp_path, "rank-0", "exp-1", 1) as spool:
        spool.emit(progress(1))
    with Reporter(job("http://127.0.0.1:9"), tmp_path, interval_s=60) as reporter:
        assert not reporter.drain(0.2)
    service = FakeService()
    with serving(service) as url, Reporter(job(url), tmp_path, interval_s=60) as reporter:
        assert reporter.drain(60)
    assert service.received == [("rank-0", 0)]


def test_a_second_reporter_goes_on_where_the_first_stopped(tmp_path: Path) -> None:
    service = FakeService()
    with serving(service) as url, Spool(tmp_path, "rank-0", "exp-1", 1) as spool:
        for number in range(3):
            spool.emit(progress(number))
            with Reporter(job(url), tmp_path, interval_s=60) as reporter:
                assert reporter.drain(60)
    assert service.received == [("rank-0", 0), ("rank-0", 1), ("rank-0", 2)]


def test_a_void_token_ends_sending_with_the_reason(tmp_path: Path) -> None:
    service = FakeService()
    service.answers = [401]
    with serving(service) as url, Spool(tmp_path, "rank-0", "exp-1", 1) as spool:
        spool.emit(progress(1))
        with Reporter(job(url), tmp_path, interval_s=60) as reporter:
            assert not reporter.drain(30)
            assert reporter.refused is not None
            assert "401" in reporter.refused
    assert service.received == []


def test_a_job_goes_on_to_the_next_service_when_its_own_is_gone_and_stays_there(tmp_path: Path) -> None:
    gone, away, other = (FakeService() for _ in range(3))
    away.answers = [503]
    with serving(away) as away_url, serving(other) as other_url, Spool(tmp_path, "r", "exp-1", 1) as spool:
        with serving(gone) as gone_url:
            own = job(gone_url).knowing([away_url, other_url])
            with Reporter(own, tmp_path, interval_s=60) as reporter:
                spool.emit(progress(1))
                assert reporter.drain(60)
        with Reporter(own, tmp_path, interval_s=60) as reporter:
            for number in (2, 3):
                spool.emit(progress(number))
                assert reporter.drain(60)
    assert [service.received for service in (gone, away, other)] == [[("r", 0)], [], [("r", 1), ("r", 2)]]


def test_another_program_at_a_dead_service_s_address_refuses_for_nobody(tmp_path: Path) -> None:
    stranger, other = FakeService(), FakeService()
    stranger.answers = [404]
    with serving(stranger) as url, serving(other) as other_url, Spool(tmp_path, "r", "exp-1", 1) as spool:
        spool.emit(progress(1))
        with Reporter(job(url).knowing([other_url]), tmp_path, interval_s=60) as reporter:
            assert reporter.drain(60)
            assert reporter.refused is None
    assert other.received == [("r", 0)]


@pytest.mark.parametrize("own_answers", [[503], []])
def test_a_stranger_s_refusal_ends_nothing_while_a_service_is_away(
    tmp_path: Path, own_answers: list[int]
) -> None:
    stranger, own = FakeService(), FakeService()
    stranger.answers, own.answers = [404] * 1_000, own_answers
    with serving(stranger) as url, Spool(tmp_path, "r", "exp-1", 1) as spool:
        spool.emit(progress(1))
        with serving(own) as own_url:
            pass  # it was here
        with Reporter(job(url).knowing([own_url]), tmp_path, interval_s=0.05) as reporter:
            assert not reporter.drain(0.5)
            assert reporter.refused is None


def test_an_address_that_is_none_is_not_learnt(tmp_path: Path) -> None:
    service = FakeService()
    bad = ["http://host:84x1", "host:8411", "ftp://a", "http://", "http://a b", "http://u:p@a", "http://a?b"]
    with serving(service) as url, Spool(tmp_path, "r", "exp-1", 1) as spool:
        own = job(url).knowing(bad)
        assert own.urls == (url,)
        spool.emit(progress(1))
        with Reporter(own, tmp_path, interval_s=60) as reporter:
            assert reporter.drain(60)
    with open_service(job("http://127.0.0.1:84x1"), 1.0) as wrong, pytest.raises(httpx.TransportError):
        wrong.request("GET", "/")


def test_a_job_asks_for_longer_than_its_service_waits_for_it() -> None:
    assert ResourceSpec().scheduling_deadline_s < ASKING_S


def test_a_reporter_hears_which_services_live_and_forgets_none(tmp_path: Path) -> None:
    first, second = FakeService(), FakeService()
    with serving(second) as second_url, Spool(tmp_path, "r", "exp-1", 1) as spool:
        with serving(first) as first_url:
            first.living = {"urls": [second_url]}
            with Reporter(job(first_url), tmp_path, interval_s=0.01, refresh_s=0.01) as reporter:
                wait_until(lambda: second_url in reporter.urls, 60, "the second one's address")
        spool.emit(progress(1))
        with Reporter(job(first_url).knowing(reporter.urls), tmp_path, interval_s=60) as reporter:
            assert reporter.drain(60)
            assert set(reporter.urls) == {first_url, second_url}
    assert second.received == [("r", 0)]


def test_the_token_goes_to_no_address_that_the_service_has_not_told(tmp_path: Path) -> None:
    service, stranger = FakeService(), FakeService()
    with serving(service) as url, serving(stranger) as elsewhere, Spool(tmp_path, "r", "exp-1", 1) as spool:
        service.location, service.answers = elsewhere, [307] * 1_000
        spool.emit(progress(1))
        with Reporter(job(url), tmp_path, interval_s=60) as reporter:
            assert not reporter.drain(0.2)
        with pytest.raises(JobError, match="307"):
            fetch_assignment(job(url), deadline_s=0)
    assert service.tokens == {"Bearer secret"}
    assert stranger.tokens == set()


def test_addresses_of_services_reach_a_job_and_its_ranks_by_the_environment() -> None:
    own = job("http://a:1").knowing(["http://b:2/", "http://a:1"])
    assert own.urls == ("http://a:1", "http://b:2")
    assert JobEnvironment.read(own.variables()).urls == own.urls
    group = GroupEnvironment("http://a:1", "exp-1", "t").knowing(own.urls)
    assert GroupEnvironment.read(group.variables()).urls == own.urls
    assert JobEnvironment.read(job("http://a:1").variables()).urls == ("http://a:1",)
    many = own.knowing(f"http://c:{port}" for port in range(100))
    assert len(many.urls) == 16
    assert many.urls[0] == "http://a:1"


@pytest.mark.parametrize("loopback", ["http://127.0.0.1:8411", "http://localhost:8411", "http://[::1]:8411"])
def test_another_host_s_loopback_is_nobody_s_address(loopback: str) -> None:
    """Whoever listens there on the job's host is no service."""
    assert job("http://a:1").knowing([loopback, "http://b:2"]).urls == ("http://a:1", "http://b:2")
    with open_service(job("http://a:1"), 1.0) as service:
        service.learn([loopback, "http://b:2"])
        assert service.urls == ("http://a:1", "http://b:2")
    assert job("http://127.0.0.1:1").knowing([loopback]).urls == ("http://127.0.0.1:1", loopback)


def test_a_line_still_being_written_waits_for_its_end(tmp_path: Path) -> None:
    service = FakeService()
    with Spool(tmp_path / "", "rank-0", "exp-1", 1) as spool:
        spool.emit(progress(1))
        spool.emit(progress(2))
    whole = spool.path.read_bytes()
    spool.path.write_bytes(whole[:-10])
    with serving(service) as url, Reporter(job(url), tmp_path, interval_s=60) as reporter:
        assert reporter.drain(60)
        assert service.received == [("rank-0", 0)]
        spool.path.write_bytes(whole)
        assert reporter.drain(60)
    assert service.received == [("rank-0", 0), ("rank-0", 1)]


def test_a_torn_line_is_left_out_and_the_rest_goes_on(tmp_path: Path) -> None:
    service = FakeService()
    with Spool(tmp_path, "rank-0", "exp-1", 1) as spool:
        spool.emit(progress(1))
    with spool.path.open("ab") as file:
        file.write(b'{"subject_id": "x", "torn')
    with Spool(tmp_path, "rank-0", "exp-1", 2) as spool:
        spool.emit(progress(1))
    with serving(service) as url, Reporter(job(url), tmp_path, interval_s=60) as reporter:
        assert reporter.drain(60)
    assert service.received == [("rank-0", 0), ("rank-0", 0)]


def test_events_written_while_the_disk_is_full_follow_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Spool(tmp_path, "rank-0", "exp-1", 1) as spool:
        spool.emit(progress(0))
        assert spool._file is not None
        real = spool._file

        class FullDisk:
            room = 7

            def write(self, data: bytes) -> int:
                taken, self.room = data[: self.room], 0
                if not taken:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return real.write(taken)

            def close(self) -> None:
                real.close()

        monkeypatch.setattr(spool, "_file", FullDisk())
        spool.emit(progress(1))
        spool.emit(progress(2))
        monkeypatch.setattr(spool, "_file", real)
        spool.emit(progress(3))
    lines = spool.path.read_bytes().splitlines()
    assert [EVENT_ADAPTER.validate_json(line).seq for line in lines] == [0, 1, 2, 3]


def test_non_finite_values_survive_the_spool(tmp_path: Path) -> None:
    with Spool(tmp_path, "rank-0", "exp-1", 1) as spool:
        points = (MetricPoint(step=1, name="train_loss", value=float("nan"), energy_mj=float("inf")),)
        spool.emit(Metrics(points=points), run=("exp-1-r1", 1))
    event = EVENT_ADAPTER.validate_json(spool.path.read_bytes())
    assert isinstance(event.payload, Metrics)
    point = event.payload.points[0]
    assert point.value != point.value
    assert point.energy_mj == float("inf")
    assert (event.subject_id, event.attempt) == ("exp-1-r1", 1)


def test_an_assignment_that_is_refused_or_out_of_reach_says_so() -> None:
    service = FakeService()
    service.answers = [404]
    with serving(service) as url, pytest.raises(JobError, match="404"):
        fetch_assignment(job(url))
    with pytest.raises(JobError, match="GHOSTWATT_SERVICE_URL"):
        fetch_assignment(job("http://127.0.0.1:9"), deadline_s=0)


@pytest.mark.parametrize("name", ["../../etc", "A", "", "a" * 65, "exp 1", "exp;rm"])
def test_an_experiment_id_that_no_service_makes_is_refused(name: str) -> None:
    environment = {
        "GHOSTWATT_SERVICE_URL": "http://x",
        "GHOSTWATT_EXPERIMENT_ID": name,
        "GHOSTWATT_INGEST_TOKEN": "t",
    }
    with pytest.raises(JobError):
        JobEnvironment.read(environment)
