"""Who uses a head together: the last to leave knows it, whoever was killed, and nobody comes in meanwhile."""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from unittest import mock

import pytest

from services.head_records import MARK, recorded
from services.head_use import HeadUse
from services.processes import family
from services.ray_head import RayHead, RayHeadError
from tests.running import wait_until

AWAY = RuntimeError("the database is away")
SMALL_MARK = uuid.uuid4().hex


def always() -> bool:
    return True


def never() -> bool:
    return False


def test_the_last_to_leave_knows_it_and_nobody_comes_in_meanwhile(tmp_path: Path) -> None:
    first, second, late = (HeadUse(tmp_path) for _ in range(3))
    assert not first.is_last(), "it has not begun"
    assert first.begin(never)
    assert second.begin(never)
    assert not first.is_last()
    assert second.is_last(), "the first has asked, and so leaves"
    assert not late.begin(always)
    second.end()
    second.end()
    assert late.begin(never)
    assert late.is_last()


def test_one_looks_for_a_head_at_a_time(tmp_path: Path) -> None:
    first, second = HeadUse(tmp_path), HeadUse(tmp_path)
    with first.alone(always) as is_alone:
        assert is_alone
        with second.alone(always) as both:
            assert not both
    with second.alone(always) as is_alone:
        assert is_alone


def test_a_killed_service_uses_nothing_any_more_though_what_it_started_lives(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, time; from pathlib import Path; from services.head_use import HeadUse\n"
        "use = HeadUse(Path(sys.argv[1])); assert use.begin(lambda: False)\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid, flush=True)\n"
        "time.sleep(600)"
    )
    left = HeadUse(tmp_path)
    assert left.begin(never)
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert not left.is_last()
        assert left.begin(never)
        process.kill()
    try:
        again = HeadUse(tmp_path)
        left.end()
        assert again.begin(never)
        assert again.is_last()
    finally:
        os.kill(child, signal.SIGKILL)


class Launched(Exception):
    """Instead of a real head."""


@pytest.fixture
def adopted(tmp_path: Path) -> "subprocess.Popen[bytes]":
    """What stands for a head that both services have found."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"],
        env=os.environ | {MARK: SMALL_MARK},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    told = f'{{"pid": {process.pid}, "mark": "{SMALL_MARK}", "address": "http://127.0.0.1:9", "temp_dir": "/tmp/no"}}'
    (tmp_path / "head.json").write_text(told)
    return process


def using(folder: Path, told: list[str], error: Exception | None = None) -> RayHead:
    def tell(address: str) -> None:
        if error is not None:
            raise error
        told.append(address)

    head = RayHead(folder, tell)
    with mock.patch.object(RayHead, "_answers", return_value=True):
        head.start()
    return head


def test_a_head_ends_with_the_last_service_that_uses_it(
    tmp_path: Path, adopted: "subprocess.Popen[bytes]"
) -> None:
    told: list[str] = []
    first, second = using(tmp_path, told), using(tmp_path, told)
    assert first.stop() is False
    assert first.stop() is False
    assert second.alive()
    assert told == []
    assert second.stop() is True
    adopted.communicate(timeout=30)
    assert told == ["http://127.0.0.1:9"]
    assert recorded(tmp_path / "head.json") is None


def test_what_could_not_be_told_of_a_head_that_was_ended_is_told_before_there_is_another(
    tmp_path: Path, adopted: "subprocess.Popen[bytes]"
) -> None:
    """As when the database is away, or the service is killed while it ends."""
    told: list[str] = []
    with pytest.raises(RuntimeError, match="away"):
        using(tmp_path, told, AWAY).stop()
    adopted.communicate(timeout=30)
    assert family(None, MARK, SMALL_MARK) == set()
    with mock.patch.object(RayHead, "_launch", side_effect=Launched):
        with pytest.raises(RuntimeError, match="away"):
            using(tmp_path, told, AWAY)
        with pytest.raises(Launched):
            using(tmp_path, told)
        assert told == ["http://127.0.0.1:9"]
        with pytest.raises(Launched):
            using(tmp_path, told)
    assert told == ["http://127.0.0.1:9"], "once"


def test_a_head_that_is_marked_as_ended_and_lives_is_ended_and_not_adopted(
    tmp_path: Path, adopted: "subprocess.Popen[bytes]"
) -> None:
    """Its service was killed before it had ended it."""
    told: list[str] = []
    head = using(tmp_path, told)
    with mock.patch.object(RayHead, "_end", side_effect=AWAY), pytest.raises(RuntimeError):
        head.stop()
    assert adopted.poll() is None
    with mock.patch.object(RayHead, "_launch", side_effect=Launched), pytest.raises(Launched):
        using(tmp_path, told)
    adopted.communicate(timeout=30)
    assert told == ["http://127.0.0.1:9"]


def test_who_comes_while_a_head_is_ended_waits_and_may_give_up(tmp_path: Path) -> None:
    ending = HeadUse(tmp_path)
    assert ending.begin(never)
    assert ending.is_last()
    with pytest.raises(RayHeadError, match="ending"):
        RayHead(tmp_path).start(cancelled=always)
    ending.end()
    wait_until(lambda: HeadUse(tmp_path).begin(always), 5, "a use")
