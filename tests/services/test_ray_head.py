"""The embedded Ray head, for real: loopback and token, adoption, and an end that leaves nothing."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from unittest import mock

import httpx
import psutil
import pytest
from pydantic import TypeAdapter

from phantom_core.known_process import KnownProcess
from services import ray_head
from services.cluster import Cluster
from services.head_records import MARK
from services.log_parts import LogPart
from services.processes import family
from services.ray_head import RayHead, RayHeadError
from tests.running import wait_until

LOOPBACK = ("127.", "::1", "::ffff:127.")


def record(folder: Path) -> dict[str, object]:
    told: dict[str, object] = json.loads((folder / "head.json").read_text())
    return told


def members(folder: Path) -> set[psutil.Process]:
    return family(leader_of(folder), MARK, str(record(folder)["mark"]))


def leader_of(folder: Path) -> psutil.Process:
    leader = TypeAdapter(KnownProcess).validate_python(record(folder)["leader"])
    return psutil.Process(leader.pid)


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
    with RayHead(folder, startup_deadline_s=300) as head:
        assert head.alive()
        told, family_of_head = record(folder), members(folder)
        assert (folder / "token").stat().st_mode & 0o777 == 0o600
        assert len(family_of_head) > 3
        addresses = listening(family_of_head)
        assert addresses
        assert {address for address in addresses if not address.startswith(LOOPBACK)} == set()

        assert httpx.get(f"{head.address}/api/jobs/", timeout=60).status_code == 401
        wrong = {"Authorization": "Bearer " + "0" * 64}
        assert httpx.get(f"{head.address}/api/jobs/", headers=wrong, timeout=60).status_code in {401, 403}
        right = {"Authorization": f"Bearer {head.token}"}
        assert httpx.get(f"{head.address}/api/jobs/", headers=right, timeout=60).json() == []

        look_at_a_long_log(head, tmp_path)

        # Another service's start, after the first was killed: the same head, with its jobs.
        second = RayHead(folder)
        second.start()
        assert second.address == head.address
        assert record(folder) == told

        # The leader's death is seen, though nobody waits for it, and the next start ends what it left.
        leader = leader_of(folder)
        leader.kill()
        wait_until(lambda: leader.status() == psutil.STATUS_ZOMBIE, 120, "end of the leader")
        assert not second.alive()
        assert not head.alive()
    second.stop()
    head.stop()
    left = [process for process in family_of_head if process.is_running() and process.status() != "zombie"]
    assert left == []
    assert family(None, MARK, str(told["mark"])) == set()
    assert not Path(str(told["temp_dir"])).exists()
    assert not (folder / "head.json").exists()


def look_at_a_long_log(head: RayHead, folder: Path) -> None:
    """A job prints more than any answer may hold: its end is there, at once, and so is any piece before it."""
    printed = 10 * 2**20
    script = folder / "prints"
    script.write_text(
        f"#!{sys.executable}\nfor number in range({printed // 10}):\n    print(f'{{number:09d}}')\nprint('the end')\n"
    )
    script.chmod(0o700)
    # Ray itself waits 10 s for a node's agent.
    with Cluster(head.address, head.token, timeout_s=60) as patient:
        patient.submit("prints-much", python=str(script), environment={}, name="prints much")
    with (
        Cluster(head.address, head.token, timeout_s=60) as cluster,
        mock.patch.object(Cluster, "_whole_log") as whole,
    ):
        wait_until(lambda: _state(cluster, "prints-much") == "SUCCEEDED", 120, "the end of the job")
        part = cluster.log("prints-much", 0, 1_000)
        assert part is not None
        assert (len(part.data), part.data[-8:]) == (1_000, b"the end\n")
        assert part.end_byte >= printed
        assert cluster.log("prints-much", part.end_byte - 4) == LogPart(part.end_byte - 4, b"end\n")
        assert cluster.log("prints-much", part.end_byte) == LogPart(part.end_byte, b"")
        assert cluster.log("no-such-job") is None
    whole.assert_not_called()
    with (
        Cluster(head.address, head.token) as cluster,
        mock.patch.object(Cluster, "_log_of_node", return_value=None),
    ):
        assert cluster.log("prints-much", 0, 1_000) == part, "where the node can't be reached"


def _state(cluster: Cluster, job: str) -> str | None:
    status = cluster.status(job)
    return None if status is None else status.state


@pytest.fixture
def stranger() -> "subprocess.Popen[bytes]":
    """Another's program, that leads a session as a shell does."""
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)


class Launched(Exception):
    """Instead of a real head."""


REUSED: dict[str, Callable[[KnownProcess], KnownProcess]] = {
    "another beginning": lambda leader: replace(leader, began=leader.began - 1),
    "another start of the host": lambda leader: replace(leader, host_start="another"),
}


@pytest.mark.parametrize("temp_dir", ["ghostwatt-elsewhere", "ghostwatt-here/..", "."])
@pytest.mark.parametrize("version", [*REUSED, "older", "older, at the same moment"])
def test_a_record_whose_process_id_belongs_to_another_program_harms_nobody(
    tmp_path: Path, stranger: "subprocess.Popen[bytes]", version: str, temp_dir: str
) -> None:
    folder = tmp_path / "ray"
    folder.mkdir()
    (tmp_path / temp_dir).mkdir(exist_ok=True, parents=True)
    stale: dict[str, object] = {
        "mark": "0" * 32,
        "address": "http://127.0.0.1:9",
        "temp_dir": str(tmp_path / temp_dir),
    }
    if version in REUSED:
        stale["leader"] = asdict(REUSED[version](KnownProcess.of(stranger.pid)))
    else:
        earlier_s = 0 if "same moment" in version else 3_600
        created_at_s = psutil.Process(stranger.pid).create_time() - earlier_s
        stale |= {"pid": stranger.pid, "created_at_s": created_at_s}
    (folder / "head.json").write_text(json.dumps(stale))
    try:
        with (
            mock.patch.object(RayHead, "_launch", side_effect=Launched),
            mock.patch.object(RayHead, "_answers", return_value=True),
            pytest.raises(Launched),
        ):
            RayHead(folder).start()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.communicate()
    assert (tmp_path / temp_dir).exists()


@pytest.fixture
def small_head(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """What stands for a head: a process that carries the mark, with a child in a session of its own."""
    child = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    script = f"import subprocess; subprocess.Popen({child!r}, start_new_session=True).wait()"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | {MARK: SMALL_MARK},
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        for member in family(None, MARK, SMALL_MARK):
            member.kill()


SMALL_MARK = uuid.uuid4().hex


def write_older_record(folder: Path, pid: int, created_at_s: float) -> None:
    """As an earlier version would."""
    told = {"pid": pid, "created_at_s": created_at_s, "mark": SMALL_MARK}
    told |= {"address": "http://127.0.0.1:9", "temp_dir": "/tmp/ghostwatt-none"}
    (folder / "head.json").write_text(json.dumps(told))


@pytest.mark.parametrize("step_s", [0.0, 3_600.0, -3_600.0])
def test_the_head_of_an_earlier_version_is_adopted_and_written_down_anew(
    tmp_path: Path, small_head: "subprocess.Popen[bytes]", step_s: float
) -> None:
    write_older_record(tmp_path, small_head.pid, psutil.Process(small_head.pid).create_time() + step_s)
    with mock.patch.object(RayHead, "_answers", return_value=True):
        head = RayHead(tmp_path)
        head.start()
    assert head.alive()
    assert leader_of(tmp_path).pid == small_head.pid
    head.stop()
    assert family(None, MARK, SMALL_MARK) == set()


@pytest.mark.parametrize("pid", [0, None])
def test_what_is_left_of_a_head_of_an_earlier_version_is_ended(
    tmp_path: Path, small_head: "subprocess.Popen[bytes]", pid: int | None
) -> None:
    """It was killed while it started one, or the leader has ended since."""
    write_older_record(tmp_path, small_head.pid if pid is None else pid, 0.0)
    if pid is None:
        small_head.kill()
        small_head.wait()
    assert len(family(None, MARK, SMALL_MARK)) == (1 if pid is None else 2)
    with mock.patch.object(RayHead, "_launch", side_effect=Launched), pytest.raises(Launched):
        RayHead(tmp_path).start()
    assert family(None, MARK, SMALL_MARK) == set()


@pytest.mark.skipif(not psutil.LINUX, reason="other systems tell the time of creation alone")
@pytest.mark.parametrize("step_s", [3_600.0, -3_600.0])
def test_a_wall_clock_that_is_set_makes_the_head_no_stranger(
    tmp_path: Path,
    small_head: "subprocess.Popen[bytes]",
    monkeypatch: pytest.MonkeyPatch,
    step_s: float,
) -> None:
    told = {"leader": asdict(KnownProcess.of(small_head.pid)), "mark": SMALL_MARK}
    told |= {"address": "http://127.0.0.1:9", "temp_dir": "/tmp/ghostwatt-none"}
    (tmp_path / "head.json").write_text(json.dumps(told))
    tell, created = time.time, psutil.Process.create_time
    monkeypatch.setattr(time, "time", lambda: tell() + step_s)
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: created(process) + step_s)
    with mock.patch.object(RayHead, "_answers", return_value=True):
        head = RayHead(tmp_path)
        head.start()
    assert head.alive()
    assert small_head.poll() is None
    head.stop()
    small_head.wait(30)
    assert family(None, MARK, SMALL_MARK) == set()


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
