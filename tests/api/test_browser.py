"""The pages in a real browser: they show what the service knows, and load nothing from elsewhere."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.examples import SPEC
from tests.running import RunningService, running_service

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None and os.environ.get("CI") != "true", reason="no Chromium on this machine"
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("browser")
    with running_service(folder, "tests.api.simulated_service") as service:
        yield service


@pytest.fixture(scope="module")
def identifier(service: RunningService) -> str:
    identifier = service.submit(SPEC | {"name": "seen in a browser"})
    service.wait_for(identifier, {"succeeded"}, 60)
    return identifier


def browse(url: str, profile: Path, *options: str) -> str:
    assert CHROMIUM is not None, "CI installs Chromium"
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-sync",
        "--disable-quic",
    ]
    flags += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}"]
    # Whatever isn't loopback is refused, so a page that needs the network would show it.
    flags += ["--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--virtual-time-budget=5000"]
    shown = subprocess.run(
        [CHROMIUM, *flags, *options, url], capture_output=True, text=True, timeout=120, check=True
    )
    return shown.stdout


def test_the_list_shows_experiments_with_state_and_verdict(
    service: RunningService, identifier: str, tmp_path: Path
) -> None:
    page = browse(service.url + "/", tmp_path, "--dump-dom")
    assert "seen in a browser" in page
    assert "succeeded" in page
    assert f"/experiments/{identifier}" in page


def test_an_experiment_page_shows_the_comparison_with_interval_and_method(
    service: RunningService, identifier: str, tmp_path: Path
) -> None:
    page = browse(f"{service.url}/experiments/{identifier}", tmp_path, "--dump-dom")
    comparison = service.get(f"/v1/experiments/{identifier}/comparison")
    for arm in comparison["arms"]:
        assert arm["arm"] in page
    assert "95 % interval" in page
    picture = tmp_path / "page.png"
    browse(f"{service.url}/experiments/{identifier}", tmp_path / "second", f"--screenshot={picture}")
    assert picture.stat().st_size > 5_000


def test_the_api_description_is_drawn_without_the_network(service: RunningService, tmp_path: Path) -> None:
    page = browse(service.url + "/docs", tmp_path, "--dump-dom")
    assert "/v1/experiments/{experiment_id}/comparison" in page.replace("<wbr>", "").replace("\u200b", "")
