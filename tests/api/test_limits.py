import asyncio
import gzip
from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.types import Message

from api import errors
from api.limits import RequestLimits
from api.middleware import RequestContext


def app(**limits: object) -> RequestContext:
    inner = FastAPI()
    errors.install(inner)

    @inner.post("/{path:path}")
    async def length(request: Request) -> int:
        return len(await request.body())

    return RequestContext(RequestLimits(inner, **limits))  # type: ignore[arg-type]


def post(application: RequestContext, path: str = "/", **arguments: object) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(path, **arguments)  # type: ignore[arg-type]

    return asyncio.run(send())


def test_a_body_up_to_the_limit_passes() -> None:
    response = post(app(body_bytes={"": 100}), content=b"x" * 100)
    assert (response.status_code, response.json()) == (200, 100)


def test_a_body_that_says_it_is_longer_is_refused() -> None:
    response = post(app(body_bytes={"": 100}), content=b"x" * 101)
    assert response.status_code == 413
    assert response.json()["code"] == "body-too-large"
    assert "100 bytes" in response.json()["detail"]


def test_a_body_without_a_length_is_counted_as_it_arrives() -> None:
    async def parts() -> object:
        for _ in range(11):
            yield b"x" * 10

    response = post(app(body_bytes={"": 100}), content=parts())
    assert response.status_code == 413
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "encoding", ["gzip", "deflate", "br", "GZIP", "identity, gzip", "zstd", "unheard-of"]
)
def test_a_compressed_body_is_refused_with_what_to_send(encoding: str) -> None:
    body = gzip.compress(b"name: ghosts")
    response = post(app(), content=body, headers={"Content-Encoding": encoding})
    assert response.status_code == 415
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["accept-encoding"] == "identity"
    problem = response.json()
    assert problem["code"] == "unsupported-encoding"
    assert encoding in problem["detail"]
    assert "without compression" in problem["detail"]


@pytest.mark.parametrize("encoding", ["identity", "Identity", ""])
def test_a_body_that_says_it_is_not_compressed_passes(encoding: str) -> None:
    response = post(app(), content=b"x" * 10, headers={"Content-Encoding": encoding})
    assert (response.status_code, response.json()) == (200, 10)


def test_a_compressed_body_without_a_length_is_refused_too() -> None:
    async def parts() -> object:
        yield gzip.compress(b"x" * 1_000_000)

    response = post(app(), content=parts(), headers={"Content-Encoding": "gzip"})
    assert response.status_code == 415


def test_the_first_matching_prefix_sets_the_limit() -> None:
    limits = {"/internal/": 200, "": 100}
    assert post(app(body_bytes=limits), "/internal/x", content=b"x" * 150).status_code == 200
    assert post(app(body_bytes=limits), "/other", content=b"x" * 150).status_code == 413


def test_a_long_query_is_refused() -> None:
    response = post(app(), "/?" + "x" * 9_000)
    assert response.status_code == 414
    assert response.json()["code"] == "target-too-long"


def test_a_body_that_stops_arriving_is_given_up() -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.sleep(60)
        raise AssertionError("the body was waited for")

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/", "raw_path": b"/", "query_string": b"", "headers": [],
        "server": ("localhost", 80), "scheme": "http", "http_version": "1.1",
    }  # fmt: skip
    asyncio.run(app(body_pause_s=0.01)(scope, receive, send))
    assert sent[0]["status"] == 408


def test_a_body_that_trickles_in_is_given_up() -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/", "raw_path": b"/", "query_string": b"", "headers": [],
        "server": ("localhost", 80), "scheme": "http", "http_version": "1.1",
    }  # fmt: skip
    asyncio.run(app(body_pause_s=30, body_s=0.2)(scope, receive, send))
    assert sent[0]["status"] == 408


@pytest.mark.parametrize("headers", [{"X-Long": "x" * 33_000}, {f"X-{i}": "x" for i in range(101)}])
def test_headers_that_are_too_long_or_too_many_are_refused(headers: dict[str, str]) -> None:
    response = post(app(), headers=headers)
    assert (response.status_code, response.json()["code"]) == (431, "headers-too-long")


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level("CRITICAL"):
        yield
