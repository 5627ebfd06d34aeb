"""`ghostwatt serve` and `ghostwatt keys`: the service's own process, started and ended by the command."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil

from tests.running import READY_S, free_port, has_ended, wait_until

ROOT = Path(__file__).parents[2]


def environment(data_dir: Path) -> dict[str, str]:
    # A cluster that nobody answers for: the service must serve without it, and start no Ray of its own.
    return {**os.environ, "GHOSTWATT_DATA_DIR": str(data_dir), "RAY_ADDRESS": "http://127.0.0.1:9"}


def ended(data_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "client", *arguments],
        cwd=ROOT,
        env=environment(data_dir),
        capture_output=True,
        text=True,
        timeout=READY_S,
        check=False,
    )


def test_the_service_is_started_and_ended_with_the_command(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "client", "serve", "--port", str(port)]
    log = tmp_path / "log"
    with (
        log.open("wb") as told,
        subprocess.Popen(command, cwd=ROOT, env=environment(tmp_path), stderr=told) as process,
    ):
        end = time.monotonic() + READY_S
        status = ""
        while status != "degraded":
            assert process.poll() is None
            assert time.monotonic() < end
            try:
                status = httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=10).json()["status"]
            except httpx.TransportError:
                time.sleep(0.1)
        family = psutil.Process(process.pid).children(recursive=True)
        assert family
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
    wait_until(lambda: all(has_ended(child.pid) for child in family), 60, "end of all that it started")
    assert f"serving at http://127.0.0.1:{port}; data in {tmp_path}" in log.read_text()


def test_a_service_that_can_not_start_gives_its_exit_code(tmp_path: Path) -> None:
    done = ended(tmp_path, "serve", "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 3
    assert "keys create" in done.stderr


def test_keys_are_made_on_the_services_own_database(tmp_path: Path) -> None:
    done = ended(tmp_path, "keys", "create", "--name", "laptop", "--scope", "read")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("gw_")
    assert (tmp_path / "ghostwatt.sqlite3").exists()


def test_keys_of_a_service_with_a_folder_of_its_own(tmp_path: Path) -> None:
    elsewhere, own = tmp_path / "elsewhere", tmp_path / "own"

    def keys(*arguments: str) -> subprocess.CompletedProcess[str]:
        return ended(elsewhere, "keys", *arguments, "--data-dir", str(own))

    made = keys("create", "--name", "laptop", "--scope", "read", "--json")
    assert made.returncode == 0, made.stderr
    key_id = json.loads(made.stdout)["id"]
    assert key_id in keys("list").stdout
    assert keys("revoke", key_id).returncode == 0
    (listed,) = json.loads(keys("list", "--json").stdout)
    assert listed["id"] == key_id
    assert listed["revoked_at"] is not None
    assert (own / "ghostwatt.sqlite3").exists()
    assert not elsewhere.exists()


def test_importing_the_client_loads_neither_torch_nor_a_server() -> None:
    code = "import sys, client.command; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "httpx" in loaded
    assert not loaded & {"torch", "ray", "sqlalchemy", "fastapi", "services", "api", "numpy"}
