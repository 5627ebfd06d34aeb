"""Events reach the service once each, whatever the network and the disk do in between."""

import errno
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from phantom_core.protocol import EVENT_ADAPTER, MetricPoint, Metrics, Progress
from ray_jobs.environment import JobEnvironment, JobError
from ray_jobs.reporter import Reporter, fetch_assignment
from ray_jobs.spool import Spool


class FakeService:
    """Keeps the bodies it accepts; answers what it is told to."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.bodies: list[dict[str, Any]] = []
        self.tokens: set[str | None] = set()

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
            self._answer(service.answers.pop(0) if service.answers else 200)

        def _answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

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
            assert reporter.drain(10)
            assert reporter.drain(10)
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
        assert reporter.drain(10)
    assert service.received == [("rank-0", 0)]


def test_a_second_reporter_goes_on_where_the_first_stopped(tmp_path: Path) -> None:
    service = FakeService()
    with serving(service) as url, Spool(tmp_path, "rank-0", "exp-1", 1) as spool:
        for number in range(3):
            spool.emit(progress(number))
            with Reporter(job(url), tmp_path, interval_s=60) as reporter:
                assert reporter.drain(10)
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


def test_a_line_still_being_written_waits_for_its_end(tmp_path: Path) -> None:
    service = FakeService()
    with Spool(tmp_path / "", "rank-0", "exp-1", 1) as spool:
        spool.emit(progress(1))
        spool.emit(progress(2))
    whole = spool.path.read_bytes()
    spool.path.write_bytes(whole[:-10])
    with serving(service) as url, Reporter(job(url), tmp_path, interval_s=60) as reporter:
        assert reporter.drain(10)
        assert service.received == [("rank-0", 0)]
        spool.path.write_bytes(whole)
        assert reporter.drain(10)
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
        assert reporter.drain(10)
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
