"""API keys: shown once, kept as hashes, each opening what its scopes say."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from services import keys
from services.database import Database
from services.errors import KeyLacksScope, KeyRefused, NotFound
from services.keys import Scope
from services.tables import ApiKey


def test_a_key_opens_what_its_scopes_include(database: Database) -> None:
    opens = {
        Scope.READ: {Scope.READ},
        Scope.SUBMIT: {Scope.READ, Scope.SUBMIT},
        Scope.ADMIN: {Scope.READ, Scope.SUBMIT, Scope.ADMIN},
    }
    for held, included in opens.items():
        token = keys.create(database, "mine", [held]).token
        for asked in Scope:
            if asked in included:
                assert keys.verify(database, token, asked).name == "mine"
            else:
                with pytest.raises(KeyLacksScope, match=f"this needs `{asked}`"):
                    keys.verify(database, token, asked)


def test_only_a_hash_is_kept(database: Database) -> None:
    made = keys.create(database, "mine", [Scope.READ])
    secret = made.token.removeprefix(f"gw_{made.id}_")
    with database.read() as session:
        row = session.scalars(select(ApiKey)).one()
    assert len(row.secret_hash) == 32
    assert secret.encode() not in row.secret_hash
    assert made.token not in repr(made)


@pytest.mark.parametrize("change", ["", "x", "gw_", "é", "\x00", "gw_aaaaaaaaaaaaaaaa_" + "A" * 43])
def test_a_made_up_key_opens_nothing(database: Database, change: str) -> None:
    keys.create(database, "mine", [Scope.ADMIN])
    with pytest.raises(KeyRefused):
        keys.verify(database, change, Scope.READ)


def test_every_changed_character_closes_it(database: Database) -> None:
    token = keys.create(database, "mine", [Scope.ADMIN]).token
    for place in (3, 10, 20, 30, len(token) - 1):
        other = "b" if token[place] != "b" else "c"
        with pytest.raises(KeyRefused):
            keys.verify(database, token[:place] + other + token[place + 1 :], Scope.READ)
    with pytest.raises(KeyRefused):
        keys.verify(database, token + "a", Scope.READ)
    with pytest.raises(KeyRefused):
        keys.verify(database, f" {token}\n", Scope.READ)


def test_a_revoked_key_opens_nothing_and_is_revoked_once(database: Database) -> None:
    made = keys.create(database, "mine", [Scope.READ])
    keys.revoke(database, made.id)
    (before,) = keys.list_keys(database)
    keys.revoke(database, made.id)
    assert keys.list_keys(database) == (before,)
    assert before.revoked_at is not None
    with pytest.raises(KeyRefused):
        keys.verify(database, made.token, Scope.READ)
    with pytest.raises(NotFound):
        keys.revoke(database, "nothing")


def test_an_expired_key_opens_nothing(database: Database) -> None:
    moment = datetime.now(UTC)
    old = keys.create(database, "old", [Scope.READ], expires_at=moment - timedelta(minutes=2))
    new = keys.create(database, "new", [Scope.READ], expires_at=moment + timedelta(minutes=2))
    with pytest.raises(KeyRefused):
        keys.verify(database, old.token, Scope.READ)
    keys.verify(database, new.token, Scope.READ)


def test_people_s_keys_are_listed_without_those_of_jobs(database: Database) -> None:
    from tests.services.simulated_job import begun

    begun(database)
    keys.create(database, "mine", [Scope.READ, Scope.SUBMIT])
    (view,) = keys.list_keys(database)
    assert (view.name, view.scopes) == ("mine", ("read", "submit"))


def test_a_job_s_key_opens_its_own_experiment_only(database: Database) -> None:
    from services import leases
    from tests.services.simulated_job import begun

    identifier, lease, _ = begun(database)
    token = leases.begin_attempt(database, lease).token
    assert keys.verify(database, token, Scope.INGEST, experiment_id=identifier).experiment_id == identifier
    for other in ("exp-other", None):
        with pytest.raises(KeyLacksScope, match="another experiment"):
            keys.verify(database, token, Scope.INGEST, experiment_id=other)
    with pytest.raises(KeyLacksScope):
        keys.verify(database, token, Scope.READ, experiment_id=identifier)


@pytest.mark.parametrize("scopes", [[], [Scope.INGEST], [Scope.READ, Scope.INGEST]])
def test_people_can_not_make_keys_of_jobs(database: Database, scopes: list[Scope]) -> None:
    with pytest.raises(ValueError, match="give one or more of read, submit and admin"):
        keys.create(database, "mine", scopes)
