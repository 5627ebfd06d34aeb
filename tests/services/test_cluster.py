"""Ray's job server, played by a real HTTP server: every answer, wrong answers and none."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from services.cluster import AbsentCluster, Cluster, JobStatus
from services.log_parts import LogPart, end_of_json
from services.ray_requests import ClusterError, ClusterRefused, ClusterUnreachable
from tests.running import wait_until

JOB = "exp-1"


class FakeRay:
    """Answers what it is told to and keeps what it was asked."""

    def __init__(self) -> None:
        self.status = 200
        self.body: bytes = b"{}"
        self.trickle = threading.Event()
        """Set: the body comes a byte at a time."""
        self.hang = threading.Event()
        """Set: no answer until released."""
        self.release = threading.Event()
        self.asked: list[tuple[str, str, str | None, Any]] = []
        self.address = ""

    def says(self, status: int, body: object) -> None:
        self.status = status
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()


@pytest.fixture
def ray() -> Iterator[FakeRay]:
    fake = FakeRay()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            told = json.loads(body) if body else None
            fake.asked.append((self.command, self.path, self.headers.get("Authorization"), told))
            if fake.hang.is_set():
                fake.release.wait(30)
                return
            self.send_response(fake.status)
            self.send_header("Content-Length", str(len(fake.body)))
            self.end_headers()
            try:
                if not fake.trickle.is_set():
                    self.wfile.write(fake.body)
                    return
                for byte in fake.body:
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    if fake.release.wait(0.05):
                        return
            except OSError:
                return

        do_GET = do_POST = _answer

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        fake.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield fake
        finally:
            fake.release.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def cluster(ray: FakeRay) -> Iterator[Cluster]:
    with Cluster(ray.address, "secret", timeout_s=60) as cluster:
        yield cluster


CALLS: list[Callable[[Cluster], object]] = [
    lambda cluster: cluster.submit(JOB, python="/bin/python", environment={}, name="n"),
    lambda cluster: cluster.status(JOB),
    lambda cluster: cluster.stop(JOB),
    lambda cluster: cluster.capacity(),
]


def test_a_job_gets_nothing_of_the_caller_but_its_name_as_metadata(ray: FakeRay, cluster: Cluster) -> None:
    name = "$(reboot); `x`"
    cluster.submit(JOB, python="/opt/a b/python", environment={"GHOSTWATT_EXPERIMENT_ID": JOB}, name=name)
    ((method, path, authorization, told),) = ray.asked
    assert (method, path, authorization) == ("POST", "/api/jobs/", "Bearer secret")
    assert told == {
        "submission_id": JOB,
        "entrypoint": "exec '/opt/a b/python' -m ray_jobs.experiment",
        "runtime_env": {"env_vars": {"GHOSTWATT_EXPERIMENT_ID": JOB}},
        "metadata": {"job_name": name, "experiment_id": JOB},
    }


def test_a_status_is_rays_word_and_message(ray: FakeRay, cluster: Cluster) -> None:
    ray.says(200, {"status": "FAILED", "message": "exit \x00code 1 \ud800"})
    assert cluster.status(JOB) == JobStatus("FAILED", "exit \ufffdcode 1 ?")
    ray.says(200, {"status": "RUNNING", "message": None})
    assert cluster.status(JOB) == JobStatus("RUNNING", "")
    assert ray.asked[-1][1] == f"/api/jobs/{JOB}"


@pytest.mark.parametrize("body", [{}, {"status": None}, {"status": "ASLEEP"}, {"status": ["RUNNING"]}])
def test_a_status_that_is_none_of_rays_is_an_error(ray: FakeRay, cluster: Cluster, body: object) -> None:
    ray.says(200, body)
    with pytest.raises(ClusterError, match="none of its states"):
        cluster.status(JOB)


def test_a_job_is_unknown_only_if_ray_itself_says_so(ray: FakeRay, cluster: Cluster) -> None:
    ray.says(404, f"Job {JOB} does not exist".encode())
    assert cluster.status(JOB) is None
    cluster.stop(JOB)
    ray.says(404, b"<html>nginx: not found</html>")
    with pytest.raises(ClusterUnreachable, match="not Ray's job server"):
        cluster.status(JOB)
    with pytest.raises(ClusterUnreachable, match="not Ray's job server"):
        cluster.stop(JOB)


@pytest.mark.parametrize("call", CALLS)
def test_an_error_of_rays_is_no_statement_about_the_job(
    ray: FakeRay, cluster: Cluster, call: Callable[[Cluster], object]
) -> None:
    ray.says(500, b"Traceback: something broke")
    with pytest.raises(ClusterError, match=r"500.*something broke") as raised:
        call(cluster)
    assert type(raised.value) is ClusterError


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxy_with_nothing_behind_it_is_no_answer(
    ray: FakeRay, cluster: Cluster, call: Callable[[Cluster], object], status: int
) -> None:
    ray.says(status, b"bad gateway")
    with pytest.raises(ClusterUnreachable):
        call(cluster)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_says_where_the_right_one_goes_and_keeps_it_secret(
    ray: FakeRay, cluster: Cluster, call: Callable[[Cluster], object], status: int
) -> None:
    ray.says(status, b"no")
    with pytest.raises(ClusterError, match="RAY_AUTH_TOKEN") as raised:
        call(cluster)
    assert not isinstance(raised.value, ClusterRefused | ClusterUnreachable)
    assert "secret" not in str(raised.value)


def test_a_refused_request_is_told_apart(ray: FakeRay, cluster: Cluster) -> None:
    ray.says(400, b"submission id is in use")
    with pytest.raises(ClusterRefused, match="submission id is in use"):
        CALLS[0](cluster)


@pytest.mark.parametrize("body", [b"<html>login</html>", b"[]", b"\xff\xfe", b""])
@pytest.mark.parametrize("call", CALLS)
def test_an_answer_that_is_no_json_object_is_an_error(
    ray: FakeRay, cluster: Cluster, call: Callable[[Cluster], object], body: bytes
) -> None:
    ray.says(200, body)
    with pytest.raises(ClusterError, match=r"no JSON|no object"):
        call(cluster)


@pytest.mark.parametrize("how", ["hang", "trickle"])
@pytest.mark.parametrize("call", CALLS)
def test_an_answer_that_does_not_come_to_an_end_is_none(
    ray: FakeRay, call: Callable[[Cluster], object], how: str
) -> None:
    ray.says(200, b" " * 10_000)
    getattr(ray, how).set()
    with Cluster(ray.address, None, timeout_s=0.3) as cluster, pytest.raises(ClusterUnreachable):
        call(cluster)
    wait_until(lambda: ray.asked, 30, "a request that was read")
    assert ray.asked[-1][2] is None


@pytest.mark.parametrize("call", CALLS)
def test_nobody_listening_is_no_answer(ray: FakeRay, call: Callable[[Cluster], object]) -> None:
    with Cluster("http://127.0.0.1:9", None, timeout_s=1) as cluster, pytest.raises(ClusterUnreachable):
        call(cluster)


def test_a_connection_given_up_by_another_thread_is_no_answer(ray: FakeRay) -> None:
    cluster = Cluster(ray.address, None)
    cluster.close()
    with pytest.raises(ClusterUnreachable, match="given up"):
        cluster.status(JOB)


@pytest.mark.parametrize("address", ["auto", "ray://head:10001", "head:6379", ""])
def test_an_address_of_another_kind_is_refused_with_the_right_one(address: str) -> None:
    with pytest.raises(ClusterError, match="http://head:8265"):
        Cluster(address, None)


def test_capacity_is_that_of_living_nodes(ray: FakeRay, cluster: Cluster) -> None:
    nodes = [
        {"state": "ALIVE", "resources_total": {"CPU": 4.0, "GPU": 2.0, "memory": 1e9}},
        {"state": "ALIVE", "resources_total": {"CPU": 2.0}},
        {"state": "ALIVE", "resources_total": None},
        {"state": "DEAD", "resources_total": {"CPU": 64.0, "GPU": 8.0}},
    ]
    ray.says(200, {"data": {"result": {"result": nodes}}})
    capacity = cluster.capacity()
    assert (capacity.cpus, capacity.gpus, capacity.cpu_memory_bytes) == (6.0, 2, 1_000_000_000)


def test_a_head_that_knows_no_living_node_says_nothing_of_the_capacity(
    ray: FakeRay, cluster: Cluster
) -> None:
    ray.says(200, {"data": {"result": {"result": [{"state": "DEAD", "resources_total": {"CPU": 8}}]}}})
    with pytest.raises(ClusterUnreachable, match="no node"):
        cluster.capacity()


@pytest.mark.parametrize("data", [None, {}, {"result": None}, {"result": {"result": [1]}}])
def test_a_list_of_nodes_that_cannot_be_read_is_an_error(
    ray: FakeRay, cluster: Cluster, data: object
) -> None:
    ray.says(200, {"data": data})
    with pytest.raises(ClusterError, match="list of nodes"):
        cluster.capacity()


@pytest.mark.parametrize("status", [200, 422, 500])
def test_no_quoted_answer_holds_a_secret_or_half_of_one(ray: FakeRay, cluster: Cluster, status: int) -> None:
    secret = "Q7xK2mZ9vR4tW8yB3nL6pD5sF1gH0jCuEoXiAzTq"
    for place in range(150, 1_010, 10):
        ray.says(status, f"{'x ' * (place // 2)}Bearer {secret} and so on".encode())
        with pytest.raises(ClusterError) as raised:
            cluster.capacity()
        message = str(raised.value)
        assert not any(secret[begin : begin + 3] in message for begin in range(len(secret) - 2)), place


def test_a_log_s_end_comes_in_pieces_of_json_however_it_is_cut() -> None:
    text = "x" * 40 + '\\u d83d \\ud83d \U0001f600\n"\x00é' * 20
    for body in (json.dumps({"logs": text}), json.dumps({"logs": text}, ensure_ascii=False)):
        told = body.encode()
        for size in (1, 2, 3, 7, 64, len(told)):
            chunks = [told[begin : begin + size] for begin in range(0, len(told), size)]
            for most in (1, 10, 10_000):
                part = end_of_json(chunks, 0, most)
                assert part is not None
                assert part.data == text.encode()[-most:]
                assert part.end_byte == len(text.encode())
            last = end_of_json(chunks, len(text.encode()) - 3, 100)
            assert last == LogPart(len(text.encode()) - 3, text.encode()[-3:])
            assert end_of_json(chunks, 10**6, 100) == LogPart(len(text.encode()), b"")
    assert end_of_json([b'{"logs": "half'], 0, 10) is None
    assert end_of_json([b"<html>"] * 1_000, 0, 10) is None


def test_a_log_that_cannot_be_had_is_an_error(ray: FakeRay, cluster: Cluster) -> None:
    ray.says(200, {"status": "RUNNING", "logs": "the end"})
    with pytest.raises(ClusterError, match="without the log"):
        cluster.log(JOB)
    ray.says(200, {"logs": "the end"})
    assert cluster.log(JOB) == LogPart(0, b"the end")
    ray.says(500, b"no agent")
    with pytest.raises(ClusterError):
        cluster.log(JOB)
    ray.says(404, f"Job {JOB} does not exist".encode())
    assert cluster.log(JOB) is None


def test_a_cluster_that_is_not_there_answers_nothing_and_opens_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr("httpx.Client")
    with (
        AbsentCluster("Ray is starting") as absent,
        pytest.raises(ClusterUnreachable, match="Ray is starting"),
    ):
        absent.status(JOB)


def test_certificates_are_read_for_https_only(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    monkeypatch.setattr(
        "ssl.SSLContext.load_verify_locations", lambda *given, **named: read.append((given, named))
    )
    with Cluster("http://127.0.0.1:1", None):
        assert read == []
    with Cluster("https://127.0.0.1:1", None):
        assert read != []
