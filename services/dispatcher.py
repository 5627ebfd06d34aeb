"""Takes experiments from the queue, hands them to Ray and follows them to the end; keeps a head if need be.

Three threads: one follows experiments, one keeps the cluster (starts the embedded head, measures its capacity), one
keeps house. They only ever fail for the moment: what goes wrong is said in `cluster_problem` and tried again.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from phantom_core.checks import Capacity
from phantom_core.protocol import Reason
from services import groups, heartbeats, housekeeping, job_logs, leases
from services.cluster import FINAL_STATES, AbsentCluster, Cluster, ClusterError
from services.database import Database
from services.errors import ServiceError
from services.following import STOP_AGAIN_S, Follower
from services.lease_watch import LeaseWatch
from services.leases import Lease
from services.ray_head import RayHead, RayHeadError
from services.settings import Settings
from services.states import ExperimentState

log = logging.getLogger(__name__)

CLUSTER_CHECK_S = 5.0
HEARTBEAT_S = 5.0
SWEEP_S = 5.0
LOG_COPY_S = 5.0
GROUPS_S = 5.0
"""Seconds between two looks for worker groups that nobody hears of."""
RENEWALS_PER_LEASE = 3


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
        self._head: RayHead | None = None
        self._cluster: Cluster | None = None
        self._capacity: Capacity | None = None
        self._problem: str | None = "Ray is starting"
        self._beat_s: float | None = None
        self._told_s: float | None = None
        self._groups_s: float | None = None
        self._stopped_groups_s: dict[str, float] = {}
        self._followers: dict[str, Follower] = {}
        self._renewed_s: dict[str, float] = {}
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
        """Gives leases back, ends the embedded head with all its jobs; safe to call twice."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        if self._db is not None:
            for follower in self._followers.values():
                try:
                    leases.release(self._db, follower.lease)
                except ServiceError as error:
                    log.warning("lease of %s not given back: %s", follower.lease.experiment_id, error)
            self._followers.clear()
            self._end_idle_groups(self._db)
            self._db.close()
            self._db = None
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
        if self._head is not None:
            self._head.stop()
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

    def _dispatch(self) -> None:
        while not self._stop.is_set():
            self._beat_s = time.monotonic()
            try:
                self._round()
            except (ServiceError, ClusterError) as error:
                log.warning("dispatcher: %s", error)
            except Exception:
                log.exception("dispatcher: a round failed; going on")
            self._stop.wait(self._settings.poll_interval_s)

    def _round(self) -> None:
        assert self._db is not None
        self._tell_heartbeat(self._db)
        self._renew(self._db)
        present = self._cluster
        # What is under way must end in time, and what somebody left be taken over, with or without a cluster.
        cluster = present or AbsentCluster(self._problem or "there is no cluster")
        for identifier, follower in list(self._followers.items()):
            if self._stop.is_set():
                return
            # A cluster that does not answer costs each its timeouts; no lease may run out meanwhile.
            self._beat_s = time.monotonic()
            self._renew(self._db)
            if identifier in self._followers:
                self._step(identifier, follower, cluster)
        if len(self._followers) < self._settings.ray_max_active:
            own = {follower.lease.token for follower in self._followers.values()}
            watched = self._others.look(self._db, own)
            lease = leases.claim(
                self._db,
                self._owner,
                self._settings.lease_ttl_s,
                watched,
                from_queue=present is not None and self._problem is None,
            )
            if lease is not None:
                self._follow(self._db, lease)

        if present is not None:
            self._look_after_groups(self._db, present)

    def _look_after_groups(self, db: Database, cluster: Cluster) -> None:
        """Ends groups that should have ended by themselves, and forgets those that have."""
        now_s = time.monotonic()
        if self._groups_s is not None and now_s - self._groups_s < GROUPS_S:
            return
        self._groups_s = now_s
        for group in groups.neglected(db):
            status = cluster.status(group.id)
            if status is None or status.state in FINAL_STATES:
                groups.forget(db, group.id)
                self._stopped_groups_s.pop(group.id, None)
            elif now_s - self._stopped_groups_s.get(
                group.id, -STOP_AGAIN_S
            ) >= STOP_AGAIN_S and groups.end_neglected(db, group.id):
                log.warning("worker group %s does not end by itself; its job is stopped", group.id)
                self._stopped_groups_s[group.id] = now_s
                cluster.stop(group.id)

    def _end_idle_groups(self, db: Database) -> None:
        """Nobody will answer them any more."""
        try:
            ending = groups.end_idle(db, self._settings.service_url)
            if self._cluster is not None and self._head is None:  # an own head takes its jobs along
                for group_id in ending:
                    self._cluster.stop(group_id)
        except (ServiceError, ClusterError) as error:
            log.warning("idle worker groups were not ended: %s", error)

    def _step(self, identifier: str, follower: Follower, cluster: Cluster) -> None:
        """One look at one experiment; what goes wrong with it is none of the others' business."""
        try:
            if not follower.step(cluster):
                self._forget(identifier)
        except ServiceError as error:
            log.warning("%s: %s", identifier, error)
        except Exception:
            log.exception("%s: a step failed; going on", identifier)

    def _follow(self, db: Database, lease: Lease) -> None:
        try:
            follower = Follower(db, lease, self._settings)
        except ValueError as error:
            # It would come round for ever, ahead of all others.
            message = f"its stored spec can't be used by this version; submit it anew: {error}"
            leases.finish(db, lease, ExperimentState.FAILED, Reason.SUBMIT_FAILED, message)
            return
        self._renewed_s[lease.experiment_id] = time.monotonic()
        self._followers[lease.experiment_id] = follower

    def _tell_heartbeat(self, db: Database) -> None:
        now_s = time.monotonic()
        if self._told_s is not None and now_s - self._told_s < HEARTBEAT_S:
            return
        heartbeats.beat(db, self._owner, {"cluster_problem": self._problem})
        self._told_s = now_s

    def _keep_house(self) -> None:
        """Finishes what a service left when it died, and prunes: in a thread of its own, since leases can't wait."""
        assert self._db is not None
        while not self._stop.is_set():
            try:
                housekeeping.sweep(self._db, power_retention_days=self._settings.power_retention_days)
            except Exception:
                log.exception("housekeeping failed; going on")
            self._stop.wait(SWEEP_S)

    def _keep_logs(self) -> None:
        """Copies what jobs print while Ray has it: a head that is gone takes its logs along."""
        assert self._db is not None
        while not self._stop.wait(LOG_COPY_S):
            cluster = self._cluster
            if cluster is None:
                continue
            try:
                job_logs.copy_all(self._db, cluster, cancelled=self._stop.is_set)
            except Exception:
                log.exception("copying logs failed; going on")

    def _renew(self, db: Database) -> None:
        ttl_s = self._settings.lease_ttl_s
        for identifier, follower in list(self._followers.items()):
            if time.monotonic() - self._renewed_s[identifier] < ttl_s / RENEWALS_PER_LEASE:
                continue
            if leases.renew(db, follower.lease, ttl_s):
                self._renewed_s[identifier] = time.monotonic()
            else:
                self._forget(identifier)

    def _forget(self, identifier: str) -> None:
        self._followers.pop(identifier, None)
        self._renewed_s.pop(identifier, None)

    def _keep_cluster(self) -> None:
        while not self._stop.is_set():
            try:
                cluster = self._reach_cluster()
                self._capacity = cluster.capacity()
                self._problem = None
            except (ClusterError, RayHeadError, OSError) as error:
                self._problem = str(error)
                log.warning("cluster: %s", error)
            except Exception as error:
                self._problem = f"{type(error).__name__}: {error}"
                log.exception("cluster: looking after it failed; going on")
            self._stop.wait(CLUSTER_CHECK_S)

    def _reach_cluster(self) -> Cluster:
        if self._settings.ray_address is not None:
            if self._cluster is None:
                self._cluster = Cluster(self._settings.ray_address, ray_token(self._environment))
            return self._cluster
        if self._head is None:
            self._head = RayHead(self._settings.data_dir / "ray")
        if self._cluster is None or not self._head.alive():
            self._problem = "Ray is starting"
            stale, self._cluster = self._cluster, None
            if stale is not None:
                stale.close()
            self._head.stop()
            self._head.start(cancelled=self._stop.is_set)
            self._cluster = Cluster(self._head.address, self._head.token)
        return self._cluster


def ray_token(environment: Mapping[str, str]) -> str | None:
    """The token of a cluster that isn't ours, from where Ray too looks for it: a variable, or a file."""
    if environment.get("RAY_AUTH_TOKEN"):
        return environment["RAY_AUTH_TOKEN"]
    path = environment.get("RAY_AUTH_TOKEN_PATH")
    if path:
        return Path(path).read_text().strip()
    return None
