"""Takes experiments from the queue, hands them to Ray and follows them to the end; keeps a head if need be.

Four threads: one follows experiments, one keeps the cluster (starts the embedded head, measures its capacity), one
keeps house, one copies logs. They only ever fail for the moment: what goes wrong with Ray is said in
`cluster_problem`, what nobody expected in `trouble`, and all is tried again.
"""

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from phantom_core.checks import Capacity
from services import groups, heartbeats, housekeeping, job_logs, leases
from services.cluster import FINAL_STATES, AbsentCluster, Cluster
from services.database import Database
from services.ended_heads import put_back
from services.followed import Followed
from services.following import STOP_AGAIN_S
from services.lease_watch import LeaseWatch
from services.mishaps import EXPECTED, Mishaps
from services.scrubbing import scrubbed
from services.settings import Settings

if TYPE_CHECKING:
    from services.ray_head import RayHead

log = logging.getLogger(__name__)

CLUSTER_CHECK_S = 5.0
FIRST_CHECK_S = 0.2
"""Seconds from the start to the first look at the cluster: what it loads, or a head's own start, would keep the web
server from its first answer."""
CLUSTER_EXPECTED: tuple[type[Exception], ...] = (*EXPECTED, OSError)
"""What a cluster that is not there yet raises: an own head's files and ports, and a token's file, among it."""
HEARTBEAT_S = 5.0
SWEEP_S = 5.0
LOG_COPY_S = 5.0
GROUPS_S = 5.0
"""Seconds between two looks for worker groups that nobody hears of."""
RENEWALS_PER_LEASE = 3
LONGEST_PAUSE_S = 30.0
"""Seconds at most until an experiment is looked at again whose following failed unexpectedly."""


class Dispatcher:
    """The service's background; see `api.background.Background`."""

    def __init__(self, settings: Settings, environment: Mapping[str, str] = os.environ) -> None:
        """Args: the settings; the environment, in which Ray's token is looked for."""
        self._settings = settings
        self._environment = environment
        self._db: Database | None = None
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{time.time_ns():x}"
        self._others = LeaseWatch(settings.lease_ttl_s)
        self._stop = threading.Event()
        self._is_leaving = False
        self._head: RayHead | None = None
        self._cluster: Cluster | None = None
        self._capacity: Capacity | None = None
        self._problem: str | None = "Ray is starting"
        self._beat_s: float | None = None
        self._told_s: float | None = None
        self._groups_s: float | None = None
        self._stopped_groups_s: dict[str, float] = {}
        self._followed: dict[str, Followed] = {}
        self._mishaps = Mishaps()
        self._threads = [
            threading.Thread(target=self._keep_cluster, name="cluster keeper", daemon=True),
            threading.Thread(target=self._dispatch, name="dispatcher", daemon=True),
            threading.Thread(target=self._keep_house, name="housekeeper", daemon=True),
            threading.Thread(target=self._keep_logs, name="log keeper", daemon=True),
        ]

    def start(self) -> None:
        """Starts the threads; returns at once, while the head may take a quarter of a minute."""
        self._db = Database(self._settings.database_url)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Leaves the embedded head, which ends with its jobs if nobody else uses it; gives leases back.

        What ran on a head that ends goes back into the queue. Safe to call twice.
        """
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._is_leaving = True
        if self._head is not None and self._db is not None and self._cluster is not None:
            until_s = time.monotonic() + LOG_COPY_S
            last = partial(self._copy_logs, self._db, self._cluster, lambda: time.monotonic() > until_s)
            self._mishaps.attempt("copying logs", last, 0, expected=CLUSTER_EXPECTED)
        took_its_jobs = self._head is not None and self._mishaps.attempt(
            "ending the Ray head", self._head.stop, True, expected=CLUSTER_EXPECTED
        )
        if self._db is not None:
            for followed in self._followed.values():
                give_back = partial(leases.release, self._db, followed.lease)
                self._mishaps.attempt(f"giving back {followed.lease.experiment_id}", give_back, False)
            self._followed.clear()
            self._mishaps.attempt(
                "ending idle groups", partial(self._end_idle_groups, self._db, took_its_jobs), None
            )
            self._db.close()
            self._db = None
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
        self._head = None

    def heartbeat_age_s(self) -> float | None:
        """Seconds since the dispatching thread last came round; None before its first round."""
        return None if self._beat_s is None else time.monotonic() - self._beat_s

    def capacity(self) -> Capacity | None:
        """What the cluster has; None while that isn't known."""
        return self._capacity

    def cluster_problem(self) -> str | None:
        """Why nothing can run now; None if something can."""
        return self._problem

    def trouble(self) -> str | None:
        """What fails for reasons that nobody expected, in one sentence; None if nothing does."""
        return self._mishaps.told()

    def _dispatch(self) -> None:
        assert self._db is not None
        while not self._stop.is_set():
            self._beat_s = time.monotonic()
            interval_s = self._settings.poll_interval_s
            self._mishaps.attempt("a round", partial(self._round, self._db), None, longest_pause_s=interval_s)
            self._stop.wait(self._settings.poll_interval_s)

    def _round(self, db: Database) -> None:
        self._try("telling that the dispatcher lives", partial(self._tell_heartbeat, db))
        self._renew(db)
        present = self._cluster
        # What is under way must end in time, and what somebody left be taken over, with or without a cluster.
        cluster = present or AbsentCluster(self._problem or "there is no cluster")
        for identifier, followed in list(self._followed.items()):
            if self._stop.is_set():
                return
            # A cluster that does not answer costs each its timeouts; no lease may run out meanwhile.
            self._beat_s = time.monotonic()
            self._renew(db)
            if identifier in self._followed:
                self._step(identifier, followed, cluster)
        if len(self._followed) < self._settings.ray_max_active:
            can_run = present is not None and self._problem is None
            self._try("taking experiments", partial(self._take, db, from_queue=can_run))
        if present is not None:
            self._try("looking after worker groups", partial(self._look_after_groups, db, present))

    def _try(self, part: str, work: Callable[[], None]) -> None:
        self._mishaps.attempt(part, work, None)

    def _take(self, db: Database, *, from_queue: bool) -> None:
        own = {followed.lease.token for followed in self._followed.values()}
        watched = self._others.look(db, own)
        lease = leases.claim(db, self._owner, self._settings.lease_ttl_s, watched, from_queue=from_queue)
        if lease is not None:
            # A step's requests together may take longer than a lease lasts.
            keep = partial(self._renew, db)
            self._followed[lease.experiment_id] = Followed(db, lease, self._settings, keep=keep)

    def _look_after_groups(self, db: Database, cluster: Cluster) -> None:
        """Ends groups that should have ended by themselves, and forgets those that have."""
        now_s = time.monotonic()
        if self._groups_s is not None and now_s - self._groups_s < GROUPS_S:
            return
        self._groups_s = now_s
        neglected = groups.neglected(db)
        self._stopped_groups_s = {
            group.id: self._stopped_groups_s[group.id]
            for group in neglected
            if group.id in self._stopped_groups_s
        }
        for group in neglected:
            if group.is_to_end:
                stop = partial(self._stop_group, db, cluster, group.id, now_s)
                self._try(f"stopping worker group {group.id}", stop)
            self._try(f"looking at worker group {group.id}", partial(_forget_if_over, db, cluster, group.id))

    def _stop_group(self, db: Database, cluster: Cluster, group_id: str, now_s: float) -> None:
        last_s = self._stopped_groups_s.get(group_id)
        if last_s is not None and now_s - last_s < STOP_AGAIN_S:
            return
        if groups.end_neglected(db, group_id):
            log.warning("worker group %s does not end by itself; its job is stopped", group_id)
            self._stopped_groups_s[group_id] = now_s
            cluster.stop(group_id)

    def _end_idle_groups(self, db: Database, are_gone: bool) -> None:
        """Nobody will answer them any more."""
        ending = groups.end_idle(db, self._settings.service_url)
        if self._cluster is not None and not are_gone:
            for group_id in ending:
                self._cluster.stop(group_id)

    def _step(self, identifier: str, followed: Followed, cluster: Cluster) -> None:
        """One look at one experiment; what goes wrong with it is none of the others' business."""
        part = f"following {identifier}"
        look = partial(followed.step, cluster)
        has_more = self._mishaps.attempt(part, look, True, longest_pause_s=LONGEST_PAUSE_S)
        failing_s = self._mishaps.failing_s(part)
        if has_more and failing_s:
            end = partial(followed.end_if_due, failing_s, self._mishaps.error_of(part))
            has_more = not self._mishaps.attempt(f"ending {identifier}", end, False)
        if not has_more:
            self._forget(identifier)

    def _tell_heartbeat(self, db: Database) -> None:
        now_s = time.monotonic()
        if self._told_s is not None and now_s - self._told_s < HEARTBEAT_S:
            return
        state = {"cluster_problem": self._problem, "service_url": self._settings.service_url}
        heartbeats.beat(db, self._owner, state)
        self._told_s = now_s

    def _keep_house(self) -> None:
        """Finishes what a service left when it died, and prunes: in a thread of its own, since leases can't wait."""
        assert self._db is not None
        days = self._settings.power_retention_days
        while not self._stop.is_set():
            housekeeping.sweep(self._db, power_retention_days=days, mishaps=self._mishaps)
            self._stop.wait(SWEEP_S)

    def _keep_logs(self) -> None:
        """Copies what jobs print while Ray has it: a head that is gone takes its logs along."""
        assert self._db is not None
        while not self._stop.wait(LOG_COPY_S):
            cluster = self._cluster
            if cluster is None:
                continue
            copy = partial(self._copy_logs, self._db, cluster, self._stop.is_set)
            self._mishaps.attempt("copying logs", copy, 0)

    def _copy_logs(self, db: Database, cluster: Cluster, cancelled: Callable[[], bool]) -> int:
        return job_logs.copy_all(db, cluster, cancelled=cancelled, mishaps=self._mishaps)

    def _renew(self, db: Database) -> None:
        ttl_s = self._settings.lease_ttl_s
        pause_s = ttl_s / RENEWALS_PER_LEASE
        for identifier, followed in list(self._followed.items()):
            if time.monotonic() - followed.renewed_s < pause_s:
                continue
            part = f"keeping {identifier}"
            renew = partial(leases.renew, db, followed.lease, ttl_s)
            holds = self._mishaps.attempt(part, renew, None, longest_pause_s=pause_s)
            if holds:
                followed.renewed_s = time.monotonic()
            elif holds is not None:
                self._forget(identifier)

    def _forget(self, identifier: str) -> None:
        self._followed.pop(identifier, None)
        for what in ("following", "ending", "keeping"):
            self._mishaps.forget(f"{what} {identifier}")

    def _keep_cluster(self) -> None:
        self._stop.wait(FIRST_CHECK_S)
        while not self._stop.is_set():
            self._mishaps.attempt(
                "keeping the cluster",
                self._look_at_cluster,
                None,
                longest_pause_s=CLUSTER_CHECK_S,
                expected=CLUSTER_EXPECTED,
            )
            self._stop.wait(CLUSTER_CHECK_S)

    def _note_ended_head(self, address: str) -> None:
        """A head was ended in order: by this service, which ends, or by the one before."""
        assert self._db is not None
        if self._is_leaving:  # else another thread follows them
            for identifier, followed in self._followed.items():
                self._mishaps.attempt(f"ending {identifier}", followed.conclude, None)
        put_back(self._db, address)

    def _look_at_cluster(self) -> None:
        try:
            capacity = self._reach_cluster().capacity()
            # An own head's workers have this interpreter's packages; of others nobody knows.
            is_own = self._settings.ray_address is None and self._settings.ray_python == sys.executable
            self._capacity = replace(capacity, has_triton=_has_triton()) if is_own else capacity
        except CLUSTER_EXPECTED as error:
            self._problem = scrubbed(str(error))
            raise
        except Exception as error:
            # Its words are for the log: nobody knows what they tell.
            self._problem = (
                f"looking after the cluster fails ({type(error).__name__}); the service's log says why"
            )
            raise
        self._problem = None

    def _reach_cluster(self) -> Cluster:
        if self._settings.ray_address is not None:
            if self._cluster is None:
                self._cluster = Cluster(self._settings.ray_address, ray_token(self._environment))
            return self._cluster
        if self._head is None:
            # Not at the top: what finds a head's processes is nothing that the first answer should wait for.
            from services.ray_head import RayHead

            self._head = RayHead(self._settings.data_dir / "ray", self._note_ended_head)
        if self._cluster is None or not self._head.alive():
            self._problem = "Ray is starting"
            stale, self._cluster = self._cluster, None
            if stale is not None:
                stale.close()
            self._head.start(cancelled=self._stop.is_set)
            self._cluster = Cluster(self._head.address, self._head.token)
        return self._cluster


def _has_triton() -> bool:
    return find_spec("triton") is not None


def _forget_if_over(db: Database, cluster: Cluster, group_id: str) -> None:
    """A job that has ended, or that Ray no longer knows, can ask for nothing more."""
    status = cluster.status(group_id)
    if status is None or status.state in FINAL_STATES:
        groups.forget(db, group_id)


def ray_token(environment: Mapping[str, str]) -> str | None:
    """The token of a cluster that isn't ours, from where Ray too looks for it: a variable, or a file."""
    if environment.get("RAY_AUTH_TOKEN"):
        return environment["RAY_AUTH_TOKEN"]
    path = environment.get("RAY_AUTH_TOKEN_PATH")
    if path:
        return Path(path).read_text().strip()
    return None
