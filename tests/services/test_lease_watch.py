"""Leases that nobody renews, told by a clock that nobody sets."""

from datetime import timedelta

import pytest

from services import experiments, leases
from services.database import Database, now
from services.lease_watch import LeaseWatch
from tests.services.simulated_job import spec

TTL_S = 30.0


class Clock:
    s = 0.0

    def __call__(self) -> float:
        return self.s


def test_a_lease_that_nobody_renews_is_taken_over_though_the_clock_went_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    identifier = experiments.submit(database, spec())
    dead = leases.claim(database, "dead", TTL_S)
    assert dead is not None
    monkeypatch.setattr("services.leases.now", lambda session: now(session) - timedelta(hours=1))
    clock = Clock()
    watch = LeaseWatch("b", TTL_S, clock)
    for clock.s in (0.0, 15.0, 30.0):
        assert leases.claim(database, "b", TTL_S, watch.silent(database)) is None
    clock.s = 31
    taken = leases.claim(database, "b", TTL_S, watch.silent(database))
    assert taken is not None
    assert taken.experiment_id == identifier
    assert not leases.renew(database, dead, TTL_S)


def test_a_lease_that_is_renewed_is_left_alone(database: Database) -> None:
    experiments.submit(database, spec())
    lease = leases.claim(database, "a", TTL_S)
    assert lease is not None
    clock = Clock()
    watch = LeaseWatch("b", TTL_S, clock)
    for clock.s in (0.0, 20.0, 40.0, 60.0):
        assert watch.silent(database) == frozenset()
        assert leases.renew(database, lease, TTL_S)


def test_who_stood_still_itself_takes_nobody_for_silent(database: Database) -> None:
    experiments.submit(database, spec())
    assert leases.claim(database, "a", TTL_S) is not None
    clock = Clock()
    watch = LeaseWatch("b", TTL_S, clock)
    assert watch.silent(database) == frozenset()
    clock.s = 1_000
    assert watch.silent(database) == frozenset()


def test_a_dispatcher_s_own_leases_are_none_of_its_watch(database: Database) -> None:
    experiments.submit(database, spec())
    assert leases.claim(database, "a", TTL_S) is not None
    clock = Clock()
    watch = LeaseWatch("a", TTL_S, clock)
    for clock.s in (0.0, 20.0, 40.0):
        assert watch.silent(database) == frozenset()
