"""The embedded Ray head, for real: loopback and token, adoption, and an end that leaves nothing."""

import json
import subprocess
import sys
from pathlib import Path
from unittest import mock

import httpx
import psutil
import pytest

from services import ray_head
from services.processes import family
from services.ray_head import RayHead, RayHeadError
from tests.running import wait_until

LOOPBACK = ("127.", "::1", "::ffff:127.")


def record(folder: Path) -> dict[str, object]:
    told: dict[str, object] = json.loads((folder / "head.json").read_text())
    return told


def members(folder: Path) -> set[psutil.Process]:
    told = record(folder)
    assert isinstance(told["pid"], int)
    return family(psutil.Process(told["pid"]), ray_head.MARK, str(told["mark"]))


def listening(processes: set[psutil.Process]) -> set[str]:
    found = set()
    for process in processes:
        try:
            connections = process.net_connections("inet")
        except psutil.Error:
            continue
        found |= {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
    return found


def test_a_head_lives_on_loopback_behind_a_token_is_adopted_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "ray"
    with RayHead(folder) as head:
        assert head.alive()
        told, family_of_head = record(folder), members(folder)
        assert (folder / "token").stat().st_mode & 0o777 == 0o600
        assert len(family_of_head) > 3
        addresses = listening(family_of_head)
        assert addresses
        assert {address for address in addresses if not address.startswith(LOOPBACK)} == set()

        assert httpx.get(f"{head.address}/api/jobs/", timeout=10).status_code == 401
        wrong = {"Authorization": "Bearer " + "0" * 64}
        assert httpx.get(f"{head.address}/api/jobs/", headers=wrong, timeout=10).status_code in {401, 403}
        right = {"Authorization": f"Bearer {head.token}"}
        assert httpx.get(f"{head.address}/api/jobs/", headers=right, timeout=10).json() == []

        # Another service's start, after the first was killed: the same head, with its jobs.
        second = RayHead(folder)
        second.start()
        assert second.address == head.address
        assert record(folder) == told

        # The leader's death is seen, though nobody waits for it, and the next start ends what it left.
        leader = psutil.Process(int(str(told["pid"])))
        leader.kill()
        wait_until(lambda: leader.status() == psutil.STATUS_ZOMBIE, 10, "end of the leader")
        assert not second.alive()
        assert not head.alive()
    second.stop()
    head.stop()
    left = [process for process in family_of_head if process.is_running() and process.status() != "zombie"]
    assert left == []
    assert family(None, ray_head.MARK, str(told["mark"])) == set()
    assert not Path(str(told["temp_dir"])).exists()
    assert not (folder / "head.json").exists()


@pytest.fixture
def stranger() -> "subprocess.Popen[bytes]":
    """Another's program, that leads a session as a shell does."""
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)


class Launched(Exception):
    """Instead of a real head."""


@pytest.mark.parametrize("temp_dir", ["ghostwatt-elsewhere", "ghostwatt-here/..", "."])
def test_a_record_whose_process_id_belongs_to_another_program_harms_nobody(
    tmp_path: Path, stranger: "subprocess.Popen[bytes]", temp_dir: str
) -> None:
    folder = tmp_path / "ray"
    folder.mkdir()
    (tmp_path / temp_dir).mkdir(exist_ok=True, parents=True)
    stale = {
        "pid": stranger.pid,
        "created_at_s": psutil.Process(stranger.pid).create_time() - 3_600,
        "mark": "0" * 32,
        "address": "http://127.0.0.1:9",
        "temp_dir": str(tmp_path / temp_dir),
    }
    (folder / "head.json").write_text(json.dumps(stale))
    try:
        with mock.patch.object(RayHead, "_launch", side_effect=Launched), pytest.raises(Launched):
            RayHead(folder).start()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.communicate()
    assert (tmp_path / temp_dir).exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', '{"pid": 1}'])
def test_a_record_that_cannot_be_read_is_no_head(tmp_path: Path, text: str) -> None:
    (tmp_path / "head.json").write_text(text)
    with mock.patch.object(RayHead, "_launch", side_effect=Launched), pytest.raises(Launched):
        RayHead(tmp_path).start()


@pytest.mark.parametrize("command", ["import sys; print('no room'); sys.exit(3)", "input(); print()"])
def test_a_head_that_does_not_come_up_says_what_was_seen_and_leaves_nothing(
    tmp_path: Path, command: str
) -> None:
    with (
        mock.patch.object(ray_head, "_command", return_value=[sys.executable, "-c", command]),
        pytest.raises(RayHeadError, match=r"code \d: "),
    ):
        RayHead(tmp_path).start()
    assert not (tmp_path / "head.json").exists()


def test_waiting_for_a_head_can_be_given_up(tmp_path: Path) -> None:
    script = "import time; time.sleep(300)"
    temp_dirs: list[str] = []

    def command(port: int, client_port: int, temp_dir: str) -> list[str]:
        temp_dirs.append(temp_dir)
        return [sys.executable, "-c", script]

    head = RayHead(tmp_path)
    with mock.patch.object(ray_head, "_command", command), pytest.raises(RayHeadError, match="ending"):
        head.start(cancelled=lambda: True)
    assert not head.alive()
    assert [Path(temp_dir).exists() for temp_dir in temp_dirs] == [False]
