"""The deployment files, held to the code: what they name must exist there."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from api.commands import commands
from services.settings import Settings, variables

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return document


def environment_of(service: dict[str, Any]) -> dict[str, str]:
    return dict(service.get("environment") or {})


def test_every_role_of_the_design_has_a_container(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {"postgres", "migrate", "ray-head", "ray-worker", "service"}


def test_every_ghostwatt_variable_is_a_setting(compose: dict[str, Any]) -> None:
    known = set(variables())
    for name, service in compose["services"].items():
        named = {key for key in environment_of(service) if key.startswith("GHOSTWATT_")}
        assert named <= known, f"{name} sets {sorted(named - known)}"


def test_settings_accept_what_compose_gives_the_service(compose: dict[str, Any]) -> None:
    given = {
        key: re.sub(r"\$\{[^}]*\}", "secret", str(value))
        for key, value in environment_of(compose["services"]["service"]).items()
    }
    settings = Settings.from_environment(given)
    assert settings.database_url.startswith("postgresql+psycopg://ghostwatt:secret@postgres/")
    assert settings.ray_address == "http://ray-head:8265"
    assert settings.service_url == "http://service:8411"


def test_commands_exist(compose: dict[str, Any]) -> None:
    known = set(typer.main.get_group(commands).commands)
    for name in ("service", "migrate"):
        command = compose["services"][name]["command"]
        assert command[:3] == ["python", "-m", "api"], name
        assert command[3] in known, f"{name} runs {command[3]!r}; the commands are {sorted(known)}"
    dockerfile = (ROOT / "Dockerfile").read_text()
    match = re.search(r'^CMD \["python", "-m", "api", "(\w+)"\]', dockerfile, re.MULTILINE)
    assert match is not None
    assert match[1] in known


def test_ray_commands_take_their_options(compose: dict[str, Any]) -> None:
    scripts = pytest.importorskip("ray.scripts.scripts")
    options = {option for parameter in scripts.start.params for option in parameter.opts}
    for name in ("ray-head", "ray-worker"):
        ray, start, *given = compose["services"][name]["command"]
        assert (ray, start) == ("ray", "start")
        assert {option.split("=")[0] for option in given} <= options


def test_only_the_service_leaves_the_host_and_only_on_loopback(compose: dict[str, Any]) -> None:
    ports = {name: service["ports"] for name, service in compose["services"].items() if "ports" in service}
    port = Settings.model_fields["port"].default
    assert ports == {"service": [f"127.0.0.1:{port}:{port}"]}
    assert f"EXPOSE {port}" in (ROOT / "Dockerfile").read_text()


def test_ray_asks_for_a_token_everywhere(compose: dict[str, Any]) -> None:
    for name in ("ray-head", "ray-worker"):
        environment = environment_of(compose["services"][name])
        assert environment["RAY_AUTH_MODE"] == "token"
        assert environment["RAY_AUTH_TOKEN"].startswith("${RAY_AUTH_TOKEN:?")


def test_secrets_have_no_default_and_the_example_names_all_of_them(compose: dict[str, Any]) -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    needed = set(re.findall(r"\$\{([A-Z_]+):\?", text))
    assert needed == {"POSTGRES_PASSWORD", "RAY_AUTH_TOKEN"}
    example = dict(
        line.split("=", 1)
        for line in (ROOT / ".env.example").read_text().splitlines()
        if "=" in line and not line.startswith("#")
    )
    assert {name: example[name] for name in needed} == dict.fromkeys(needed, "")


def test_the_service_waits_for_its_migrations(compose: dict[str, Any]) -> None:
    waits = compose["services"]["service"]["depends_on"]
    assert waits["migrate"]["condition"] == "service_completed_successfully"
    assert compose["services"]["migrate"]["depends_on"]["postgres"]["condition"] == "service_healthy"


def test_the_image_holds_every_package_and_pinned_versions() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for pattern in project["tool"]["setuptools"]["packages"]["find"]["include"]:
        package = pattern.removesuffix("*")
        assert f"COPY {package} {package}" in dockerfile
    assert "--constraint constraints.txt" in dockerfile
    python = re.search(r"python:(\d+)\.(\d+)", dockerfile)
    assert python is not None
    assert (int(python[1]), int(python[2])) >= (3, 11)


def test_containers_run_the_installed_package_and_not_sources_that_they_may_not_write_bytecode_for() -> None:
    places = re.findall(r"^WORKDIR (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert len(places) == 2
    assert places[0] != places[1]


def test_the_health_check_asks_what_the_api_answers(compose: dict[str, Any]) -> None:
    check = shlex.join(compose["services"]["service"]["healthcheck"]["test"])
    assert f"127.0.0.1:{Settings.model_fields['port'].default}/healthz" in check
