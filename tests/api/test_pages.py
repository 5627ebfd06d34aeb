import re
from html.parser import HTMLParser

import pytest

from tests.api.serving import Service


class Addresses(HTMLParser):
    """Everything that a page makes a browser fetch, and inline code."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.inline: list[str] = []
        self._inside: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("script", "img", "iframe") and values.get("src"):
            self.fetched.append(str(values["src"]))
        if tag == "link":
            self.fetched.append(str(values["href"]))
        self._inside = tag if tag in ("script", "style") else None
        self.inline += [name for name, _ in attrs if name.startswith("on") or name == "style"]

    def handle_data(self, data: str) -> None:
        if self._inside and data.strip():
            self.inline.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = None


def page(service: Service, path: str) -> str:
    response = service.http.get(path)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/html")
    return response.text


@pytest.mark.parametrize("path", ["/", "/docs", "experiment"])
def test_a_page_fetches_from_its_own_service_only_and_has_nothing_inline(service: Service, path: str) -> None:
    path = f"/experiments/{service.submit()}" if path == "experiment" else path
    parser = Addresses()
    parser.feed(page(service, path))
    assert parser.inline == []
    assert parser.fetched
    for address in parser.fetched:
        assert address.startswith("/")
        assert not address.startswith("//")
        assert service.http.get(address).status_code == 200


def test_the_policy_forbids_everything_from_elsewhere(service: Service) -> None:
    for path in ("/", "/docs"):
        policy = service.http.get(path).headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "http" not in policy
        assert "script-src 'self';" in policy


def test_the_script_of_the_docs_asks_nobody_else(service: Service) -> None:
    script = service.http.get("/static/docs.js").text
    assert not re.search(r"https?://", script)
    assert "validatorUrl: null" in script


def test_the_style_sheet_fetches_nothing(service: Service) -> None:
    assert not re.search(r"url\(|@import", service.http.get("/static/ghostwatt.css").text)


def test_experiments_are_listed_with_their_states(service: Service) -> None:
    experiment = service.submit(name="shown on the page")
    text = page(service, "/")
    assert "shown on the page" in text
    assert f'href="/experiments/{experiment}"' in text
    assert "queued" in text


def test_what_users_write_is_text_not_markup(service: Service) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    experiment = service.submit(description=evil, tags={"note": evil})
    for path in ("/", f"/experiments/{experiment}"):
        assert "<script>alert" not in page(service, path)
        assert "<img src=x" not in page(service, path)
    assert "&lt;script&gt;" in page(service, f"/experiments/{experiment}")


def test_an_experiment_is_shown_with_its_arms_and_how_to_read_it_back(service: Service) -> None:
    experiment = service.submit()
    text = page(service, f"/experiments/{experiment}")
    assert "phantom" in text
    assert f"curl {service.url}/v1/experiments/{experiment}/comparison" in text
    assert 'http-equiv="refresh"' in text


def test_an_experiment_that_has_ended_is_not_loaded_again_and_again(service: Service) -> None:
    experiment = service.submit()
    service.http.post(f"/v1/experiments/{experiment}/cancel")
    assert 'http-equiv="refresh"' not in page(service, f"/experiments/{experiment}")


def test_an_unknown_experiment_has_a_page_that_says_so(service: Service) -> None:
    response = service.http.get("/experiments/exp-nothing", headers={"Accept": "text/html,*/*;q=0.8"})
    assert response.status_code == 404
    assert "No such experiment" in response.text


@pytest.mark.parametrize("accept", ["*/*", "application/json", ""])
def test_programs_are_told_so_in_a_problem_document(service: Service, accept: str) -> None:
    response = service.http.get("/experiments/exp-nothing", headers={"Accept": accept})
    assert (response.status_code, response.headers["content-type"]) == (404, "application/problem+json")


def test_a_cluster_that_is_down_is_said_on_the_page(service: Service) -> None:
    service.background.problem = "Ray is <starting>"
    try:
        assert "Ray is &lt;starting&gt;" in page(service, "/")
    finally:
        service.background.problem = None


def test_older_experiments_are_a_page_away(service: Service) -> None:
    for _ in range(51):
        service.submit(name="one of many")
    text = page(service, "/")
    link = re.search(r'href="(/\?cursor=[^"]+)"', text)
    assert link
    assert "experiments/exp-" in page(service, link[1])
