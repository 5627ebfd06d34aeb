import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from client.service_process import ServiceProcess, free_port, service_environment
from tests import running
from tests.running import has_ended, wait_until

READY = "print('ready', flush=True); "
GENTLE = READY + "import sys; sys.stdin.read()"
STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + READY + "import time; time.sleep(60)"
)
PARENT = (
    "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {child!r}]); "
    "print('child', child.pid, flush=True); child.wait()"
)


def start(tmp_path: Path, code: str, stop_s: float = 60.0) -> ServiceProcess:
    return ServiceProcess(
        dict(os.environ),
        log=tmp_path / "log" / "service.log",
        command=[sys.executable, "-c", code],
        stop_s=stop_s,
    )


def until(condition: Callable[[], object]) -> None:
    wait_until(condition, 120, "sign of that", every_s=0.01)


def test_a_child_that_ends_when_asked_is_not_killed(tmp_path: Path) -> None:
    with start(tmp_path, GENTLE) as service:
        until(lambda: "ready" in service.last_lines())
        assert service.exit_code() is None
    assert service.ended_gently
    assert service.exit_code() == -signal.SIGTERM


def test_a_child_that_ignores_the_request_is_killed(tmp_path: Path) -> None:
    with start(tmp_path, STUBBORN, stop_s=0.2) as service:
        until(lambda: "ready" in service.last_lines())
    assert not service.ended_gently
    assert service.exit_code() == -signal.SIGKILL


def test_what_the_child_leaves_behind_is_killed_too(tmp_path: Path) -> None:
    with start(tmp_path, PARENT.format(child=STUBBORN)) as service:
        until(lambda: {"ready", "child"} <= set(service.last_lines().split()))
        words = service.last_lines().split()
        orphan = int(words[words.index("child") + 1])
        assert psutil.pid_exists(orphan)
    assert not service.ended_gently
    until(lambda: has_ended(orphan))


def test_the_child_is_ended_when_the_block_fails(tmp_path: Path) -> None:
    service = start(tmp_path, GENTLE)
    with pytest.raises(RuntimeError), service:
        raise RuntimeError("the demo broke")
    assert service.exit_code() is not None


def test_a_child_that_ended_by_itself_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with start(tmp_path, "print('no port'); raise SystemExit(3)") as service:
        until(lambda: service.exit_code() is not None)
        assert service.exit_code() == 3
        assert service.last_lines() == "no port"


def test_stopping_twice_is_safe(tmp_path: Path) -> None:
    with start(tmp_path, GENTLE) as service:
        service.stop()
        service.stop()


def test_the_child_is_out_of_reach_of_the_terminals_ctrl_c(tmp_path: Path) -> None:
    with start(tmp_path, GENTLE) as service:
        assert os.getsid(service.pid) == service.pid
        assert os.getpgid(service.pid) != os.getpgrp()


def test_the_child_notices_that_its_starter_was_killed(tmp_path: Path) -> None:
    log = tmp_path / "service.log"
    code = (
        "import os, sys, time, pathlib; from client.service_process import ServiceProcess; "
        f"service = ServiceProcess(dict(os.environ), log=pathlib.Path({str(log)!r}), "
        f"command=[sys.executable, '-c', {GENTLE!r}]).__enter__(); print(service.pid, flush=True); "
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        child = int(starter.stdout.readline())
        starter.kill()
    until(lambda: has_ended(child))


def test_a_taken_port_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) != port


def test_a_free_port_is_taken_as_preferred() -> None:
    port = running.free_port()
    assert free_port(port) == port


def test_the_commands_own_variables_do_not_reach_the_service() -> None:
    inherited = {
        "PATH": "/bin",
        "GHOSTWATT_URL": "http://x",
        "GHOSTWATT_API_KEY": "gw_x",
        "GHOSTWATT_PORT": "1",
    }
    environment = service_environment({"GHOSTWATT_HOST": "::1"}, ["GHOSTWATT_PORT"], inherited)
    assert environment == {"PATH": "/bin", "GHOSTWATT_HOST": "::1"}
