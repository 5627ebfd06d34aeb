"""A Ray head that the service starts for itself, owns and ends: on loopback, with a token.

`ray stop` would end every Ray on the machine, so this ends the processes that it started and no others. A
head that outlived a killed service is found again through `head.json` and adopted, with its jobs; so is one that
another service has started in the same folder. The last service that leaves ends it (`head_use.py`), and `head.json`
says so until what ran there has been told of it.
"""

import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Self

import psutil

from phantom_core.protocol import CHECKPOINT_FOLDER
from services.head_records import MARK, HeadRecord, known, recorded
from services.head_use import HeadUse
from services.processes import adopting_orphans, end, family, sessions_of
from services.ray_requests import ClusterError
from services.scrubbing import scrubbed

log = logging.getLogger(__name__)

STARTUP_DEADLINE_S = 120.0
ADOPTION_DEADLINE_S = 30.0
"""Seconds for which a head that lives may leave unanswered before it is replaced: its jobs go with it."""
STOP_GRACE_S = 4.0
TEMP_PREFIX = "ghostwatt-"
TEMP_PARENT = Path("/tmp")  # noqa: S108 (made by mkdtemp; a longer path has no room for Ray's sockets)
OBJECT_STORE_BYTES = 200_000_000
"""Nothing large goes through Ray's object store; its default would take 30 % of the memory."""
NOT_WAITED_FOR = "the Ray head was not waited for: the service is ending"


class RayHeadError(ClusterError):
    """The head did not come up; the message says what was seen."""


def _nobody_to_tell(_address: str) -> None:
    """What ran on the head is nobody's."""


class RayHead:
    """Starts or adopts a head on entry; on exit it ends it, unless another service uses it."""

    def __init__(
        self,
        folder: Path,
        tell_ended: Callable[[str], object] = _nobody_to_tell,
        *,
        startup_deadline_s: float = STARTUP_DEADLINE_S,
    ) -> None:
        """Args.

        folder: Where token, log, record and locks lie.
        tell_ended: Called with the address of a head that a service has ended in order, as soon as all that ran there
            is over: by that service, or if it can't, by the next before it starts another head. May raise, and is then
            called again.
        startup_deadline_s: Seconds that the head may take to come up.
        """
        self._folder = folder
        self._tell_ended = tell_ended
        self._startup_deadline_s = startup_deadline_s
        self._use = HeadUse(folder)
        self._record: HeadRecord | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The job server's address."""
        assert self._record is not None, "the head is started first"
        return self._record.address

    @property
    def token(self) -> str:
        """The token without which the head answers nobody."""
        return self._token_file.read_text().strip()

    def start(self, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Adopts the recorded head if it lives and answers; else starts one and waits until it answers.

        Args:
            cancelled: Asked while waiting; True gives up.

        Raises:
            RayHeadError: It ended, or did not answer in time, or waiting was cancelled.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._use.begin(cancelled):
            raise RayHeadError(NOT_WAITED_FOR)
        with self._use.alone(cancelled) as is_alone:
            if not is_alone:
                raise RayHeadError(NOT_WAITED_FOR)
            record = recorded(self._record_file)
            if record is not None:
                if not record.is_ended and self._adoptable(record, cancelled):
                    log.info("adopted the Ray head at %s", record.address)
                    self._write(record)
                    return
                self._end(record)
            self._launch(cancelled)

    def alive(self) -> bool:
        """Whether the head's leading process lives."""
        if self._process is not None:
            self._process.poll()
        return self._record is not None and self._record.is_living

    def stop(self) -> bool:
        """Leaves the head, and ends it with everything that runs on it if no other service uses it; safe to call twice.

        Returns:
            Whether it was ended.
        """
        try:
            record = recorded(self._record_file) if self._use.is_last() else None
            if record is None:
                return False
            # Written first: should this process be killed meanwhile, the next one must know why the jobs are gone.
            self._write(replace(record, is_ended=True))
            self._end(replace(record, is_ended=True))
            self._reap()
            return True
        finally:
            self._record = self._process = None
            self._use.end()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def _token_file(self) -> Path:
        return self._folder / "token"

    @property
    def _record_file(self) -> Path:
        return self._folder / "head.json"

    @property
    def _log_file(self) -> Path:
        return self._folder / "head.log"

    def _write(self, record: HeadRecord) -> None:
        self._record = record
        record.write(self._record_file)

    def _adoptable(self, record: HeadRecord, cancelled: Callable[[], bool]) -> bool:
        """Whether the recorded head lives and answers, now or soon: it may be busy, or still starting."""
        end_at = time.monotonic() + ADOPTION_DEADLINE_S
        while record.is_living:
            if self._answers(record.address):
                return True
            if cancelled():
                raise RayHeadError(NOT_WAITED_FOR)
            if time.monotonic() > end_at:
                return False
            time.sleep(0.2)
        return False

    def _launch(self, cancelled: Callable[[], bool]) -> None:
        descriptor = os.open(self._token_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(descriptor, 0o600)
            file.write(secrets.token_hex(32))
        mark = secrets.token_hex(16)
        # Ray puts sockets below this folder, and their paths must stay under 107 bytes.
        temp_dir = tempfile.mkdtemp(prefix=TEMP_PREFIX, dir=TEMP_PARENT)
        port, client_port = _free_ports(2)
        address = f"http://127.0.0.1:{port}"
        # Written before it exists, so that a service killed right now leaves none that nobody knows of.
        record = HeadRecord(None, mark, address, temp_dir)
        self._write(record)
        try:
            with self._log_file.open("wb") as output:
                self._process = subprocess.Popen(
                    adopting_orphans(_command(port, client_port, temp_dir)),
                    env=self._environment(mark, temp_dir),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._write(replace(record, leader=known(self._process.pid)))
            self._wait_until_ready(address, cancelled)
        except BaseException:
            assert self._record is not None
            self._end(self._record)
            self._record = None
            self._reap()
            raise

    def _environment(self, mark: str, temp_dir: str) -> dict[str, str]:
        # Settings and keys of the service are none of a worker's business.
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GHOSTWATT_", "RAY_")) and name != "DATABASE_URL"
        }
        return inherited | {
            MARK: mark,
            # What jobs leave behind when they are killed goes with the head.
            "TMPDIR": temp_dir,
            # What another attempt goes on from must not: that may run on the next head.
            CHECKPOINT_FOLDER: str(self._folder),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self._token_file),
            # Despite its name it means: this is a cluster of one machine, use the loopback address alone.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            # Ray Train aborts gracefully on SIGINT.
            "RAY_JOB_STOP_SIGNAL": "SIGINT",
            "RAY_JOB_STOP_WAIT_TIME_S": "15",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_TRAIN_V2_ENABLED": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def _wait_until_ready(self, address: str, cancelled: Callable[[], bool]) -> None:
        """Ready is: the jobs server answers and a node is alive; `ray start` saying so is not enough."""
        assert self._process is not None
        end_at = time.monotonic() + self._startup_deadline_s
        while time.monotonic() < end_at:
            if self._process.poll() is not None:
                raise RayHeadError(
                    f"the Ray head ended at once with code {self._process.returncode}: {self._log_tail()}"
                )
            if self._answers(address):
                return
            if cancelled():
                raise RayHeadError(NOT_WAITED_FOR)
            time.sleep(0.2)
        raise RayHeadError(
            f"the Ray head did not answer within {self._startup_deadline_s:.0f} s: {self._log_tail()}"
        )

    def _answers(self, address: str) -> bool:
        # Costs a tenth of the service's start, and is not needed before the first answer.
        import httpx

        try:
            headers = {"Authorization": f"Bearer {self.token}"}
            with httpx.Client(base_url=address, headers=headers, timeout=5, trust_env=False) as client:
                if not client.get("/api/jobs/").is_success:
                    return False
                nodes = client.get("/api/v0/nodes").json()["data"]["result"]["result"]
                return any(node.get("state") == "ALIVE" for node in nodes)
        except (httpx.HTTPError, OSError, ValueError, KeyError, TypeError, AttributeError):
            return False

    def _log_tail(self) -> str:
        try:
            return scrubbed(self._log_file.read_text(errors="replace"))[-2000:]
        except OSError as error:
            return str(error)

    def _reap(self) -> None:
        if self._process is not None:
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                log.warning("process %d of the Ray head does not end", self._process.pid)
            self._process = None

    def _end(self, record: HeadRecord) -> None:
        """Ends a head's processes, forgets it, and says so first if that was in order."""
        leader = record.process()
        stuck: list[psutil.Process] = []
        sessions: frozenset[int] = frozenset()
        # Whoever is found before the head ends can't hide by losing its parent afterwards; the second look is
        # for those that were being started during the first.
        for _ in range(2):
            members = family(leader, MARK, record.mark, sessions)
            sessions |= sessions_of(members)
            stuck = end(members, STOP_GRACE_S)
        if stuck:
            log.warning("processes of the Ray head that can't be ended: %s", [p.pid for p in stuck])
        temp_dir = Path(record.temp_dir)
        if temp_dir.name.startswith(TEMP_PREFIX) and temp_dir.parent == TEMP_PARENT:
            shutil.rmtree(temp_dir, ignore_errors=True)
        if record.is_ended:
            self._tell_ended(record.address)
        self._record_file.unlink(missing_ok=True)


def _command(port: int, client_port: int, temp_dir: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        "--block",
        "--node-ip-address=127.0.0.1",
        "--port=0",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={port}",
        "--dashboard-agent-listen-port=0",
        "--min-worker-port=0",
        "--max-worker-port=0",
        f"--ray-client-server-port={client_port}",
        f"--temp-dir={temp_dir}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        "--disable-usage-stats",
        "--include-log-monitor=false",
    ]


def _free_ports(count: int) -> list[int]:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [server.getsockname()[1] for server in servers]
    finally:
        for server in servers:
            server.close()
