"""Leases that nobody renews, told by a clock that nobody sets."""

from datetime import timedelta

import pytest

from services import experiments, leases
from services.database import Database, now
from services.lease_watch import LeaseWatch, Watched
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
    watch = LeaseWatch(TTL_S, clock)
    for clock.s in (0.0, 15.0, 30.0):
        assert leases.claim(database, "b", TTL_S, watch.look(database)) is None
    clock.s = 31
    taken = leases.claim(database, "b", TTL_S, watch.look(database))
    assert taken is not None
    assert taken.experiment_id == identifier
    assert not leases.renew(database, dead, TTL_S)


def test_a_lease_that_is_renewed_is_left_alone(database: Database) -> None:
    experiments.submit(database, spec())
    lease = leases.claim(database, "a", TTL_S)
    assert lease is not None
    clock = Clock()
    watch = LeaseWatch(TTL_S, clock)
    for clock.s in (0.0, 20.0, 40.0, 60.0):
        assert watch.look(database).silent == frozenset()
        assert leases.renew(database, lease, TTL_S)


def test_who_stood_still_itself_takes_nobody_for_silent(database: Database) -> None:
    experiments.submit(database, spec())
    assert leases.claim(database, "a", TTL_S) is not None
    clock = Clock()
    watch = LeaseWatch(TTL_S, clock)
    assert watch.look(database).silent == frozenset()
    clock.s = 1_000
    assert watch.look(database).silent == frozenset()


def test_a_dispatcher_does_not_take_over_from_itself(database: Database) -> None:
    experiments.submit(database, spec())
    own = leases.claim(database, "a", TTL_S)
    assert own is not None
    clock = Clock()
    watch = LeaseWatch(TTL_S, clock)
    for clock.s in (0.0, 20.0, 40.0):
        watched = watch.look(database, {own.token})
        assert watched == Watched(frozenset(), frozenset({own.token}))


def test_a_clock_that_goes_forward_takes_nothing_from_who_renews(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = LeaseWatch(TTL_S, Clock())
    watch.look(database)
    experiments.submit(database, spec())
    assert leases.claim(database, "a", TTL_S) is not None
    monkeypatch.setattr("services.leases.now", lambda session: now(session) + timedelta(hours=1))
    assert leases.claim(database, "b", TTL_S, watch.look(database)) is None


def test_a_lease_from_before_the_first_look_goes_by_its_moment(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiments.submit(database, spec())
    assert leases.claim(database, "a", TTL_S) is not None
    watch = LeaseWatch(TTL_S, Clock())
    assert leases.claim(database, "b", TTL_S, watch.look(database)) is None
    monkeypatch.setattr("services.leases.now", lambda session: now(session) + timedelta(seconds=TTL_S))
    assert leases.claim(database, "b", TTL_S, watch.look(database)) is not None


def test_what_is_given_back_is_free_at_once(database: Database) -> None:
    watch = LeaseWatch(TTL_S, Clock())
    watch.look(database)
    identifier = experiments.submit(database, spec())
    lease = leases.claim(database, "a", TTL_S)
    assert lease is not None
    leases.begin_attempt(database, lease)
    assert leases.mark_starting(database, lease, identifier)
    assert watch.look(database).fresh == {lease.token}
    assert leases.release(database, lease)
    assert leases.claim(database, "b", TTL_S, watch.look(database)) is not None
