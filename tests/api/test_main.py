"""The service's own process: `python -m api`, with a dispatcher that trains nothing."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from typer.testing import CliRunner, Result

from api.commands import commands, listening_socket
from services.settings import Settings
from tests.api.own_log import kept_log
from tests.running import READY_S, free_port, wait_until

ROOT = Path(__file__).parents[2]
MODULE = "tests.api.simulated_service"


def environment(data_dir: Path, **variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GHOSTWATT_")}
    return {**kept, "GHOSTWATT_DATA_DIR": str(data_dir), **variables}


def run(data_dir: Path, *arguments: str, **variables: str) -> Result:
    """A command that ends by itself, in this process."""
    with kept_log():  # the runner's standard error ends with the command
        return CliRunner().invoke(commands, arguments, env={"GHOSTWATT_DATA_DIR": str(data_dir), **variables})


@contextmanager
def serving(data_dir: Path, *arguments: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address."""
    port = str(free_port())
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE, *arguments],
        cwd=ROOT,
        env=environment(data_dir, GHOSTWATT_PORT=port, **variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        end = time.monotonic() + READY_S
        while True:
            assert process.poll() is None, "it ended while starting"
            assert time.monotonic() < end, "it did not start in time"
            try:
                httpx.get(f"{url}/healthz", timeout=5)
                break
            except httpx.TransportError:
                time.sleep(0.05)
        yield process, url
    finally:
        process.kill()
        process.communicate()


def test_it_serves_by_default_and_two_signals_end_it_in_order(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, url):
        # Not at once: the dispatcher may hold the lock that its database is tried with.
        wait_until(
            lambda: httpx.get(f"{url}/readyz", timeout=30).json()["status"] == "ready", READY_S, "ready"
        )
        httpx.get(f"{url}/nowhere", headers={"X-Request-ID": "find-me"}, timeout=30)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "Application shutdown complete" in output
    assert "Traceback" not in output
    assert re.search(r"ghostwatt\.access: find-me GET /nowhere 404", output)


def test_it_ends_with_its_standard_input_when_told_so(tmp_path: Path) -> None:
    with serving(tmp_path, "serve", "--until-stdin-closes") as (process, _):
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "Application shutdown complete" in output


def test_a_taken_port_is_said_before_anything_is_started(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run(tmp_path / "data", "serve", GHOSTWATT_PORT=port)
    assert done.exit_code == 3
    assert f"port {port}" in done.stderr
    assert not (tmp_path / "data").exists()


def test_answers_are_not_held_back_by_nagles_algorithm(tmp_path: Path) -> None:
    with listening_socket(Settings(data_dir=tmp_path, port=0)) as listener:
        # What asyncio looks at before it sets TCP_NODELAY on accepted connections.
        assert listener.proto == socket.IPPROTO_TCP


def test_settings_that_can_not_be_used_are_a_usage_error(tmp_path: Path) -> None:
    done = run(tmp_path, "serve", GHOSTWATT_PORT="many")
    assert done.exit_code == 2
    assert "GHOSTWATT_PORT" in done.stderr
    assert "Traceback" not in done.stderr


def test_another_address_without_a_key_is_refused_with_what_to_do(tmp_path: Path) -> None:
    done = run(tmp_path, "serve", GHOSTWATT_HOST="0.0.0.0", GHOSTWATT_PORT="0")
    assert done.exit_code == 3
    assert "keys create" in done.output
    assert "Traceback" not in done.output


def test_migrate_brings_the_database_to_head_and_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, "migrate")
    assert done.exit_code == 0, done.stderr
    assert re.search(r"is at revision \w+", done.stdout)
    assert (tmp_path / "ghostwatt.sqlite3").exists()


def test_a_database_that_is_not_there_is_said_without_its_password(tmp_path: Path) -> None:
    url = "postgresql://ghostwatt:hunter2@127.0.0.1:1/none"
    done = run(tmp_path, "migrate", GHOSTWATT_DATABASE_URL=url)
    assert done.exit_code == 3
    assert "hunter2" not in done.output
    assert "Traceback" not in done.stderr


def test_keys_are_made_listed_and_revoked(tmp_path: Path) -> None:
    made = run(tmp_path, "keys", "create", "--name", "laptop", "--scope", "submit", "--json")
    assert made.exit_code == 0, made.stderr
    key = json.loads(made.stdout)
    listed = run(tmp_path, "keys", "list")
    assert key["id"] in listed.stdout
    assert "laptop" in listed.stdout
    assert key["key"] not in listed.stdout
    assert run(tmp_path, "keys", "revoke", key["id"]).exit_code == 0
    assert "revoked" in run(tmp_path, "keys", "list").stdout
    assert run(tmp_path, "keys", "revoke", "nobody").exit_code == 3
    assert run(tmp_path, "keys", "create", "--name", "x", "--scope", "everything").exit_code == 2


def test_a_made_key_opens_the_service(tmp_path: Path) -> None:
    key = run(tmp_path, "keys", "create", "--name", "laptop", "--scope", "admin").stdout.strip()
    with serving(tmp_path, "serve", GHOSTWATT_REQUIRE_KEYS="1") as (_, url):
        assert httpx.get(f"{url}/v1/experiments", timeout=30).status_code == 401
        headers = {"Authorization": f"Bearer {key}"}
        assert httpx.get(f"{url}/v1/experiments", headers=headers, timeout=30).status_code == 200
