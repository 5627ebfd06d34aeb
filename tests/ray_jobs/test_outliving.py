"""What outlives its ranks waits for their end, all of them, and never for a stranger with one's number."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from phantom_core.known_process import KnownProcess
from ray_jobs.outliving import Outliving

LOOK_S = 0.02
SOON_S = 30.0


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    started = [subprocess.Popen(command) for _ in range(3)]
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_it_waits_for_its_starter_and_then_for_the_others(processes: list[subprocess.Popen[bytes]]) -> None:
    starter, *others = processes
    bereft = threading.Event()
    Outliving(
        KnownProcess.of(starter.pid), lambda: [each.pid for each in others], bereft.set, look_every_s=LOOK_S
    )
    assert not bereft.wait(10 * LOOK_S)
    starter.kill()  # not waited for, so that it stays as a zombie: that is an end, too
    assert not bereft.wait(10 * LOOK_S)
    others[0].kill()
    assert not bereft.wait(10 * LOOK_S)
    others[1].kill()
    assert bereft.wait(SOON_S)


def test_others_that_stay_are_waited_for_no_longer_than_patience_lasts(
    processes: list[subprocess.Popen[bytes]],
) -> None:
    starter, other, _ = processes
    starter.kill()
    bereft = threading.Event()
    began_s = time.monotonic()
    Outliving(
        known_dead := KnownProcess(starter.pid, 0.0, None), lambda: [other.pid], bereft.set, patience_s=0.3
    )
    assert bereft.wait(SOON_S)
    assert time.monotonic() - began_s >= 0.3
    assert not known_dead.lives
    assert KnownProcess.of(other.pid).lives
