"""The demo as a person meets it: a process, its output, its exit code, and what it leaves behind."""

import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from client.demo import new_data_dir
from client.demo_specs import choose_demo, cpu_demo, gpu_demo
from phantom_core.checks import Capacity, SpecProblem, check
from phantom_core.plan import make_plan
from tests.running import has_ended, wait_until

ROOT = Path(__file__).parents[2]


class Demo:
    """A demo's process and what it has printed so far."""

    def __init__(self, data_dir: Path, *arguments: str, **variables: str) -> None:
        self.data_dir = data_dir
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.client.demo_driver", str(data_dir), *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def until(self, pattern: str, seconds: float = 240) -> re.Match[str]:
        """Waits until a line matches."""
        end = time.monotonic() + seconds
        while True:
            if found := re.search(pattern, self.text):
                return found
            assert time.monotonic() < end, f"{pattern} was not printed:\n{self.text}"
            assert self._reader.is_alive(), f"{pattern} was never printed:\n{self.text}"
            time.sleep(0.05)

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def ended(self, seconds: float = 240) -> int:
        """Waits for the end and gives the exit code."""
        code = self.process.wait(seconds)
        self._reader.join()
        return code

    def rows(self, query: str) -> list[tuple[object, ...]]:
        with sqlite3.connect(self.data_dir / "ghostwatt.sqlite3") as database:
            found = database.execute(query).fetchall()
        database.close()
        return found


@contextmanager
def demo(data_dir: Path, *arguments: str, **variables: str) -> Iterator[Demo]:
    started = Demo(data_dir, *arguments, **variables)
    try:
        yield started
    finally:
        family = started.family() if started.process.poll() is None else []
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        started.process.kill()
        started.ended()
        assert started.process.stdout is not None
        started.process.stdout.close()


def wait_until_gone(processes: list[psutil.Process]) -> None:
    wait_until(lambda: all(has_ended(process.pid) for process in processes), 60, "end of all processes")


def test_once_prints_the_answer_and_leaves_nothing_but_its_files(tmp_path: Path) -> None:
    with demo(tmp_path / "data", "--once") as running:
        port = re.search(r":(\d+)$", running.until(r"the service answers at (\S+)")[1])
        assert running.ended() == 0, running.text
        text = running.text
    row = next(line for line in running.lines if line.strip().startswith("phantom") and "[" in line)
    assert re.search(r"0\.\d{3} \[0\.\d{3}, 0\.\d{3}\] +saves \d+\.\d % +3/3", row)
    assert "J to target" in text
    assert "s per step" in text
    assert re.search(r"phantom against tensor, energy to the target loss: saves", text)
    experiment = re.search(r"curl \S+/v1/experiments/(\S+)/comparison", text)
    assert experiment
    assert f"/experiments/{experiment[1]}" in text
    assert "Ray: " in text
    assert str(tmp_path / "data") in text
    assert running.rows("SELECT state FROM experiments") == [("succeeded",)]
    assert running.rows("SELECT count(*) FROM runs WHERE state = 'succeeded'") == [(6,)]
    assert port
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(port[1]))) != 0


def test_it_serves_on_after_the_answer_until_ctrl_c_and_that_is_success(tmp_path: Path) -> None:
    with demo(tmp_path) as running:
        url = running.until(r"serving at (\S+) until ctrl-c")[1]
        experiment = running.until(r"experiments/(exp-\w+)/comparison")[1]
        answer = httpx.get(f"{url}/v1/experiments/{experiment}/comparison", timeout=30).json()
        assert answer["arms"][0]["primary"]["verdict"] == "saves"
        family = running.family()
        assert family
        running.process.send_signal(signal.SIGINT)
        assert running.ended() == 0, running.text
    wait_until_gone(family)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_mid_run_ends_everything_and_says_so(tmp_path: Path, number: int, code: int) -> None:
    with demo(tmp_path, SIMULATE_PAUSE_S="600") as running:
        running.until(r"round 1 .* succeeded")
        family = running.family()
        running.process.send_signal(number)
        time.sleep(0.05)
        running.process.send_signal(number)
        assert running.ended() == code, running.text
    wait_until_gone(family)
    assert "stopped before the answer" in running.text
    assert running.rows("SELECT count(*) FROM experiments WHERE cancel_requested_at IS NULL") == [(0,)]


def test_a_signal_while_the_service_starts_ends_it_too(tmp_path: Path) -> None:
    with demo(tmp_path, SIMULATE_PAUSE_S="600") as running:
        running.until("starting the service|the service answers")
        family = running.family()
        running.process.send_signal(signal.SIGINT)
        assert running.ended() == 130, running.text
    wait_until_gone(family)


def test_a_service_that_will_not_end_is_killed(tmp_path: Path) -> None:
    with demo(tmp_path, SIMULATE_STUBBORN="1", DEMO_STOP_S="0.5") as running:
        running.until("until ctrl-c")
        family = running.family()
        running.process.send_signal(signal.SIGINT)
        assert running.ended() == 0, running.text
    wait_until_gone(family)
    assert "was killed" in running.text


def test_killing_the_command_leaves_no_service_behind(tmp_path: Path) -> None:
    with demo(tmp_path) as running:
        running.until("until ctrl-c")
        family = running.family()
        running.process.kill()
        running.ended()
        wait_until_gone(family)


def test_an_experiment_that_fails_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    with demo(tmp_path, "--once", SIMULATE_OUTCOME="failed") as running:
        assert running.ended() == 1, running.text
    assert "the experiment failed" in running.text
    assert running.rows("SELECT state FROM experiments") == [("failed",)]


def test_a_service_that_does_not_start_is_a_failure_with_its_last_words(tmp_path: Path) -> None:
    with demo(tmp_path, "--once", DEMO_SERVICE="tests.client.no_such_service") as running:
        assert running.ended() == 3, running.text
    assert "No module named tests.client.no_such_service" in running.text
    assert "service.log" in running.text


def test_a_taken_port_and_settings_meant_for_another_service_are_no_obstacle(tmp_path: Path) -> None:
    others = {
        "GHOSTWATT_DATABASE_URL": "postgresql://nowhere/x",
        "GHOSTWATT_HOST": "0.0.0.0",
        "GHOSTWATT_PORT": "1",
        "GHOSTWATT_REQUIRE_KEYS": "1",
        "GHOSTWATT_URL": "http://elsewhere",
    }
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # if somebody else has the port, that is as good
            taken.bind(("127.0.0.1", 8411))
            taken.listen()
        with demo(tmp_path, "--once", **others) as running:
            assert running.ended() == 0, running.text
    assert "port 8411 is taken" in running.text


def errors_of(problems: list[SpecProblem]) -> list[SpecProblem]:
    return [problem for problem in problems if problem.severity == "error"]


@pytest.mark.parametrize("ranks", [None, 2, 4])
def test_the_packaged_experiments_are_valid_and_have_their_controls(ranks: int | None) -> None:
    plan = make_plan(cpu_demo() if ranks is None else gpu_demo(ranks))
    assert plan.control_problems == ()
    assert errors_of(check(plan)) == []
    assert plan.world_size == (ranks or 2)
    assert {planned.arm.strategy for planned in plan.arms} >= {
        "tensor",
        "phantom",
        "block_diagonal",
        "low_rank",
    }


@pytest.mark.parametrize(
    ("gpus", "ranks", "device"), [(0, 2, "auto"), (2, 2, "cuda"), (3, 2, "cuda"), (8, 4, "cuda")]
)
def test_the_demo_takes_as_many_gpus_as_there_are(gpus: int, ranks: int, device: str) -> None:
    capacity = Capacity(cpus=64, gpus=gpus)
    spec = choose_demo(lambda spec: not errors_of(check(make_plan(spec), capacity)))
    assert make_plan(spec).world_size == ranks
    assert spec.resources.device == device


def test_every_demo_has_a_folder_of_its_own(tmp_path: Path) -> None:
    first, second = new_data_dir(tmp_path), new_data_dir(tmp_path)
    assert first != second
    assert first.is_dir()
