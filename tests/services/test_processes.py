"""Families of processes: who hides is found, who merely has an old id is left alone."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from services.processes import adopting_orphans, end, family, sessions_of

VARIABLE = "GHOSTWATT_TEST_FAMILY"

# Forks twice with a session between, so that its parent is gone; then overwrites what /proc shows of it.
HIDER = """
import ctypes, os, sys, time
def become_nameless():
    # What Ray's workers do: the title goes over the arguments and the environment behind them.
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    start, stop = int(fields[45]), int(fields[48])
    ctypes.memset(start, 0, stop - start)
    ctypes.memmove(start, b"ray::IDLE", 9)
    ctypes.CDLL(None).prctl(15, b"ray::IDLE", 0, 0, 0)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    if sys.argv[2] == "nameless":
        become_nameless()
    with open(sys.argv[1] + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    time.sleep(300)
os.wait()
time.sleep(300)
"""


class Started:
    """A leader in a session of its own, and the process that hides from it."""

    def __init__(self, folder: Path, how: str) -> None:
        self.mark = uuid.uuid4().hex
        file = folder / "hidden"
        self.popen = subprocess.Popen(
            adopting_orphans([sys.executable, "-c", HIDER, str(file), how]),
            env=os.environ | {VARIABLE: self.mark},
            start_new_session=True,
        )
        self.leader = psutil.Process(self.popen.pid)
        end_at = time.monotonic() + 120
        while not file.exists():
            assert time.monotonic() < end_at, "the process did not start"
            time.sleep(0.02)
        self.hidden = psutil.Process(int(file.read_text()))
        while self.hidden.ppid() != self.leader.pid:
            assert time.monotonic() < end_at, "the process was not adopted"
            time.sleep(0.02)

    @property
    def command(self) -> set[psutil.Process]:
        """What the launcher started: its child that is no adopted orphan."""
        return set(self.leader.children()) - {self.hidden}

    def kill_leader(self) -> None:
        """Ends command and launcher at once, as a crash of both would."""
        command = self.command
        self.popen.kill()
        self.popen.wait()
        for process in command:
            process.kill()
            process.wait(60)

    def close(self) -> None:
        command = self.command if self.leader.is_running() else set()
        for process in (self.hidden, self.leader, *command):
            if process.is_running():
                process.kill()
        self.popen.wait()


@pytest.fixture(params=["marked", "nameless"])
def started(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Started]:
    started = Started(tmp_path, request.param)
    try:
        yield started
    finally:
        started.close()


def test_a_daemon_under_another_name_is_found_and_ended(started: Started) -> None:
    assert os.getsid(started.hidden.pid) != started.leader.pid
    members = family(started.leader, VARIABLE, started.mark)
    assert members == {started.leader, started.hidden} | started.command
    assert end(members, 5) == []
    assert not started.hidden.is_running()
    assert started.popen.poll() is not None or not started.leader.is_running()


def test_a_daemon_found_once_is_found_again_by_its_session(started: Started) -> None:
    sessions = sessions_of(family(started.leader, VARIABLE, started.mark))
    started.kill_leader()
    assert family(None, VARIABLE, started.mark, sessions) == {started.hidden}


@pytest.mark.parametrize("started", ["marked"], indirect=True)
def test_a_daemon_whose_leader_is_gone_is_found_by_its_mark(started: Started) -> None:
    started.kill_leader()
    assert family(None, VARIABLE, started.mark) == {started.hidden}
    assert family(None, VARIABLE, "another") == set()


def test_orphans_that_end_are_reaped(started: Started) -> None:
    started.hidden.kill()
    started.hidden.wait(60)
    assert not psutil.pid_exists(started.hidden.pid)


def test_looking_ends_while_zombies_are_about(started: Started) -> None:
    with subprocess.Popen(["true"]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        assert psutil.Process(zombie.pid).status() == psutil.STATUS_ZOMBIE
        assert started.hidden in family(started.leader, VARIABLE, started.mark)


def test_the_caller_and_its_session_are_never_part_of_a_family() -> None:
    mark = uuid.uuid4().hex
    environment = os.environ | {VARIABLE: mark}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment) as child:
        try:
            end_at = time.monotonic() + 120
            # Until it has executed, it still has the environment of this process.
            while not (found := family(None, VARIABLE, mark)):
                assert time.monotonic() < end_at
            assert found == {psutil.Process(child.pid)}
            assert os.getsid(0) not in sessions_of(found)
            assert family(None, VARIABLE, mark, [os.getsid(0)]) == found
        finally:
            child.kill()


def test_who_does_not_heed_the_request_is_ended(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = (
        "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "pathlib.Path(sys.argv[1]).touch(); time.sleep(300)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(ready)]) as child:
        end_at = time.monotonic() + 120
        while not ready.exists():
            assert time.monotonic() < end_at
            time.sleep(0.02)
        process = psutil.Process(child.pid)
        assert end([process], 0.2) == []
        assert not process.is_running()
