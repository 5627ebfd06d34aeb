import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from api.middleware import RequestContext
from tests.api.serving import Ask


def fine(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request.scope["state"]["request_id"], headers={"Cache-Control": "max-age=9"})


def broken(request: Request) -> PlainTextResponse:
    raise RuntimeError("the secret is 4711")


async def broken_stream(request: Request) -> StreamingResponse:
    async def parts() -> object:
        yield b"begun"
        raise RuntimeError("too late for a status")

    return StreamingResponse(parts())  # type: ignore[arg-type]


app = Starlette(
    routes=[Route("/fine", fine), Route("/broken", broken), Route("/stream", broken_stream)],
    middleware=[Middleware(RequestContext)],
)


def test_every_answer_has_a_request_id_that_the_app_saw_too(ask: Ask) -> None:
    response = ask(app, "GET", "/fine")
    assert response.headers["X-Request-ID"] == response.text
    assert response.text != ask(app, "GET", "/fine").text


def test_a_callers_request_id_is_kept_if_it_is_harmless(ask: Ask) -> None:
    assert ask(app, "GET", "/fine", headers={"X-Request-ID": "build-7.2_a"}).text == "build-7.2_a"


@pytest.mark.parametrize("given", ["", "a b", "x" * 65, "a\tb", "<script>"])
def test_any_other_request_id_is_replaced(ask: Ask, given: str) -> None:
    assert ask(app, "GET", "/fine", headers={"X-Request-ID": given}).text != given


def test_security_headers_are_set_and_an_answers_own_are_kept(ask: Ask) -> None:
    headers = ask(app, "GET", "/fine").headers
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe-inline" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "max-age=9"


def test_an_unexpected_error_is_a_problem_that_says_nothing_of_it(
    ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    response = ask(app, "GET", "/broken", headers={"X-Request-ID": "r-1"})
    assert response.status_code == 500
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["request_id"] == "r-1"
    assert "4711" not in response.text
    assert "4711" in caplog.text
    assert "r-1" in caplog.text


def test_an_answer_that_has_begun_is_cut_off_rather_than_completed(ask: Ask) -> None:
    with pytest.raises(RuntimeError, match="too late"):
        ask(app, "GET", "/stream")


def test_a_line_is_logged_per_request_with_the_path_escaped(
    ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="ghostwatt.access"):
        ask(app, "GET", "/fine%0Aforged", headers={"X-Request-ID": "r-2"})
    line = next(record.getMessage() for record in caplog.records if record.name == "ghostwatt.access")
    assert line.startswith("r-2 GET /fine%0Aforged 404 ")
