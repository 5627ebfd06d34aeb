"""A process is frozen in the middle of a transaction, with the locks that it holds."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from sqlalchemy import make_url

from api.examples import SPEC
from services import engines, experiments, heartbeats, leases
from services.database import Database
from services.errors import DatabaseHeld
from services.lease_watch import LeaseWatch
from services.settings import Settings
from tests.api.serving import FakeBackground, running
from tests.running import wait_until
from tests.services.frozen_process import IDLE_IN_TRANSACTION_S
from tests.services.simulated_job import spec

WAIT_S = 120.0
"""On a machine that is busy with something else."""

Woken = Callable[[], list[str]]
"""Lets the process go on, and gives what it said since."""


@contextmanager
def frozen(url: str) -> Iterator[tuple[int, Woken]]:
    """A process that has claimed what is next, and is stopped in a transaction that locks it."""
    command = [sys.executable, "-m", "tests.services.frozen_process", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as child:
        assert child.stdout is not None
        process = psutil.Process(child.pid)
        try:
            assert child.stdout.readline() == "holds\n"
            wait_until(lambda: process.status() == psutil.STATUS_STOPPED, WAIT_S, "a stopped process")

            def wake() -> list[str]:
                process.resume()
                return child.communicate(timeout=WAIT_S)[0].split()

            yield child.pid, wake
        finally:
            child.kill()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_postgresql_lets_go_of_what_a_frozen_service_has_locked(
    database: Database, database_url: str
) -> None:
    identifier = experiments.submit(database, spec())
    with frozen(database_url) as (_, wake):
        began_s = time.monotonic()
        others = LeaseWatch(1.0)

        def taken() -> leases.Lease | None:
            return leases.claim(database, "b", 60, others.look(database))

        assert taken() is None
        lease = wait_until(taken, WAIT_S, "a lease that is taken over")
        assert lease.experiment_id == identifier
        assert time.monotonic() - began_s < IDLE_IN_TRANSACTION_S + WAIT_S / 2
        assert wake() == ["undone", "lost"]
    assert leases.renew(database, lease, 60)


def test_a_frozen_transaction_is_undone_before_others_take_over_and_a_dead_host_is_noticed_in_a_minute(
    tmp_path: Path,
) -> None:
    settings = Settings(data_dir=tmp_path)
    assert settings.poll_interval_s < engines.IDLE_IN_TRANSACTION_S < settings.lease_ttl_s
    assert settings.silence_deadline_s > engines.IDLE_IN_TRANSACTION_S
    assert engines.UNANSWERED_S <= 60


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_connections_to_postgresql_ask_whether_the_other_end_lives(database_url: str) -> None:
    engine = engines.postgresql_engine(make_url(database_url))
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        told = driver.info.get_parameters()
    engine.dispose()
    assert {name: told[name] for name in ("keepalives_idle", "keepalives_interval", "keepalives_count")} == {
        "keepalives_idle": str(engines.KEEPALIVE_AFTER_S),
        "keepalives_interval": str(engines.KEEPALIVE_EVERY_S),
        "keepalives_count": str(engines.KEEPALIVES),
    }
    assert told["tcp_user_timeout"] == str(1_000 * engines.UNANSWERED_S)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_who_waits_for_a_process_that_is_frozen_with_sqlite_s_lock_says_which_it_is(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("database", "engines"):
        monkeypatch.setattr(f"services.{module}.BUSY_TIMEOUT_S", 0.5)
    identifier = experiments.submit(database, spec())
    settings = Settings(data_dir=tmp_path, database_url=database_url)
    with running(settings, FakeBackground()) as service:
        heartbeats.beat(database, "b")
        assert service.http.get("/readyz").json()["status"] == "ready"
        with frozen(database_url) as (pid, wake):
            with pytest.raises(DatabaseHeld, match=rf"process {pid} \(stopped\)"):
                heartbeats.beat(service.database, "b")
            refused = service.http.post("/v1/experiments", json=SPEC)
            assert (refused.status_code, refused.json()["code"]) == (503, "database-unavailable")
            assert f"nothing can be written until process {pid} (stopped) goes on" in refused.json()["detail"]
            assert service.http.get(f"/v1/experiments/{identifier}").status_code == 200
            monkeypatch.setattr("api.routes.health.WRITTEN_LATELY_S", 0.0)
            ready = service.http.get("/readyz")
            assert (ready.status_code, ready.json()["status"]) == (503, "unready")
            (told,) = (check for check in ready.json()["checks"] if check["name"] == "database")
            assert not told["ok"]
            assert f"process {pid} (stopped)" in told["detail"]
            assert wake() == ["kept", "holds"]
        assert service.http.post("/v1/experiments", json=SPEC).status_code == 202
        assert service.http.get("/readyz").json()["status"] == "ready"
