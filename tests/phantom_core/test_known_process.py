"""A process is known again whatever the wall clock says, and no other is ever taken for it."""

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from pydantic import TypeAdapter

from phantom_core import known_process
from phantom_core.known_process import KnownProcess, is_running


@pytest.fixture
def other() -> Iterator["subprocess.Popen[bytes]"]:
    """Another process, whose name has what ends a name in `/proc/PID/stat`."""
    script = "import sys; open('/proc/self/comm', 'w').write('a) Z 1 (') if sys.platform == 'linux' else 0; input()"
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


@pytest.fixture(params=[True, False])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with and one without `/proc`."""
    monkeypatch.setattr(psutil, "LINUX", psutil.LINUX and request.param)
    if not request.param:
        monkeypatch.setattr(known_process, "_BOOT_ID", Path("/nowhere/boot_id"))


@pytest.mark.usefixtures("system")
def test_a_process_is_known_until_it_ends(other: "subprocess.Popen[bytes]") -> None:
    known = KnownProcess.of(other.pid)
    assert known.lives
    assert is_running(other.pid)
    other.kill()  # not waited for, so that it stays as a zombie: that is an end, too
    while known.lives:
        time.sleep(0.01)
    assert not is_running(other.pid)
    with pytest.raises(ProcessLookupError, match=str(other.pid)):
        KnownProcess.of(other.pid)
    other.wait()
    assert not known.lives
    assert not is_running(other.pid)


@pytest.mark.usefixtures("system")
def test_what_was_written_down_is_the_same_process() -> None:
    own = KnownProcess.of(os.getpid())
    written = TypeAdapter(KnownProcess).dump_json(own)
    assert TypeAdapter(KnownProcess).validate_json(written) == pickle.loads(pickle.dumps(own)) == own
    assert TypeAdapter(KnownProcess).validate_json(written).lives


@pytest.mark.usefixtures("system")
def test_a_later_process_with_its_number_is_a_stranger(other: "subprocess.Popen[bytes]") -> None:
    own = KnownProcess.of(os.getpid())
    assert own.lives
    assert not replace(own, began=own.began - 1).lives
    assert not replace(own, host_start="another").lives
    # Not the parent: what starts a process may itself have begun in the same tick.
    assert not replace(own, pid=other.pid).lives


@pytest.mark.skipif(not psutil.LINUX, reason="other systems tell the time of creation alone")
def test_a_wall_clock_that_is_set_makes_nobody_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    own = KnownProcess.of(os.getpid())
    tell = time.time
    monkeypatch.setattr(time, "time", lambda: tell() + 3_600)
    monkeypatch.setattr(psutil, "boot_time", lambda: tell() + 3_600)
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: tell() + 3_600)
    assert own.lives
    assert KnownProcess.of(os.getpid()) == own


@pytest.mark.parametrize("pid", [-1, 0, 2**31, 2**70])
@pytest.mark.usefixtures("system")
def test_what_can_be_no_number_of_a_process_is_none(pid: int) -> None:
    assert not is_running(pid) or (pid == 0 and not psutil.LINUX)
    assert not KnownProcess(pid, 1.0, None).lives
