import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from api.app import create_app
from services.settings import Settings
from tests.api.serving import Ask, FakeBackground, running

NEVER = {"torch", "ray", "scipy", "pandas", "plotly", "sklearn", "pyarrow"}
LATER = {"numpy", "jinja2", "alembic", "httpx", "psutil", "sqlalchemy.dialects.postgresql"}
"""What a first event, page, migration or look at Ray brings, or another database."""


def test_a_service_starts_without_what_only_jobs_or_later_requests_need() -> None:
    code = "import sys, api.commands, services.dispatcher; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "fastapi" in loaded
    assert not loaded & (NEVER | LATER)


def test_the_models_of_an_openapi_document_are_built_by_who_asks_for_one(tmp_path: Path) -> None:
    code = """
import contextlib, sys
import api.__main__
sys.argv = ["api", "--help"]
with contextlib.suppress(SystemExit):
    api.__main__.main()
from pydantic import BaseModel
from fastapi.openapi.models import OpenAPI, Server
from api.app import create_app
from services.settings import Settings
assert not OpenAPI.__pydantic_complete__, "the service built them for nothing"
class Later(BaseModel):
    field: int
assert Later.__pydantic_complete__, "models of others are put off, too"
assert create_app(Settings(data_dir="nowhere")).openapi()["openapi"].startswith("3.")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


def test_the_names_that_are_answered(ask: Ask, tmp_path: Path) -> None:
    def status(name: str, **changes: Any) -> int:
        app = create_app(Settings(data_dir=tmp_path, **changes))
        return ask(app, "GET", "/no/such/address", headers={"Host": name}).status_code

    lab = {"host": "0.0.0.0", "service_url": "http://service:8411"}
    assert status("localhost") == 404
    assert status("lab.example") == 421
    assert status("lab.example", allowed_hosts=("lab.example",)) == 404
    assert status("lab.example", **lab) == 404
    assert status("evil.example", **lab, allowed_hosts=("lab.example",)) == 421
    assert status("service:8411", **lab, allowed_hosts=("lab.example",)) == 404
    assert status("lab.example", allowed_hosts=("https://lab.example",)) == 404
    assert status("evil.example", allowed_hosts=("https://lab.example",)) == 421


def test_the_origins_that_may_change_things(ask: Ask, tmp_path: Path) -> None:
    def status(host: str, origin: str, **changes: Any) -> int:
        app = create_app(Settings(data_dir=tmp_path, **changes))
        return ask(app, "POST", "/no/such/address", headers={"Host": host, "Origin": origin}).status_code

    assert status("127.0.0.1:8411", "http://127.0.0.1:8411") == 404
    assert status("127.0.0.1:8411", "https://127.0.0.1:8411") == 403
    by_name, by_address = ("lab.example",), ("https://lab.example",)
    assert status("lab.example", "https://lab.example", allowed_hosts=by_name) == 403
    assert status("lab.example", "http://lab.example", allowed_hosts=by_name) == 404
    assert status("lab.example", "https://lab.example", allowed_hosts=by_address) == 404
    assert status("lab.example", "http://lab.example", allowed_hosts=by_address) == 403
    assert status("lab.example", "https://lab.example", service_url="https://lab.example/") == 404


def test_making_an_app_opens_nothing(tmp_path: Path) -> None:
    create_app(Settings(data_dir=tmp_path / "data"))
    assert not (tmp_path / "data").exists()


def test_the_background_runs_as_long_as_the_app(tmp_path: Path) -> None:
    background = FakeBackground()
    with running(Settings(data_dir=tmp_path), background) as service:
        assert background.calls == ["start"]
        assert service.database.is_at_head()
    assert background.calls == ["start", "stop"]


def test_a_background_that_fails_to_start_is_still_ended(tmp_path: Path) -> None:
    class Broken(FakeBackground):
        def start(self) -> None:
            super().start()
            raise RuntimeError("no Ray here")

    background = Broken()
    with (
        pytest.raises(AssertionError, match="did not start"),
        running(Settings(data_dir=tmp_path), background),
    ):
        pass
    assert background.calls == ["start", "stop"]
