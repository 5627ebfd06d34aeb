"""API keys: made once, shown once, kept only as hashes.

A key reads `gw_<id>_<secret>`: the id finds the row, the secret's SHA-256 is compared in constant time. The
secret has 256 random bits, so a slow hash would protect nothing more than a fast one does.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from services.database import Database, now
from services.errors import KeyLacksScope, KeyRefused, NotFound
from services.tables import ApiKey
from services.views import KeyView

_KEY = re.compile(r"^gw_([a-z2-7]{16})_([A-Za-z0-9_-]{43})$")
_NOBODY = hashlib.sha256(b"no such key").digest()


class Scope(StrEnum):
    """What a key opens. `admin` includes `submit`, which includes `read`; `ingest` stands alone."""

    READ = "read"
    SUBMIT = "submit"
    ADMIN = "admin"
    INGEST = "ingest"


_INCLUDES: dict[Scope, frozenset[Scope]] = {
    Scope.READ: frozenset({Scope.READ}),
    Scope.SUBMIT: frozenset({Scope.READ, Scope.SUBMIT}),
    Scope.ADMIN: frozenset({Scope.READ, Scope.SUBMIT, Scope.ADMIN}),
    Scope.INGEST: frozenset({Scope.INGEST}),
}


@dataclass(frozen=True)
class Caller:
    """Who a key belongs to."""

    id: str
    """Public part of the key."""
    name: str
    """What its maker called it."""
    scopes: frozenset[Scope]
    """All that it opens, included ones spelt out."""
    experiment_id: str | None
    """The only experiment that it opens; None for all."""


@dataclass(frozen=True)
class NewKey:
    """A key that was just made; the token is in no other place."""

    id: str
    """Public part."""
    token: str
    """The whole key. Show it once and forget it."""

    def __repr__(self) -> str:
        """Without the token, so that no log can hold it."""
        return f"NewKey(id={self.id!r})"


def create(
    db: Database,
    name: str,
    scopes: Iterable[Scope],
    *,
    expires_at: datetime | None = None,
) -> NewKey:
    """Makes a key.

    Args:
        db: The database.
        name: What it is for, to tell it from others.
        scopes: What it opens; `ingest` keys are made by leases alone.
        expires_at: When it stops working; None never.

    Returns:
        The key, whole, for the only time.

    Raises:
        ValueError: No scope, or `ingest` is among them.
    """
    wanted = frozenset(scopes)
    if not wanted or Scope.INGEST in wanted:
        raise ValueError(f"scopes = {sorted(wanted)}; give one or more of read, submit and admin")
    with db.write() as session:
        return add_key(session, name, wanted, experiment_id=None, expires_at=expires_at)


def verify(db: Database, token: str, scope: Scope | str, *, experiment_id: str | None = None) -> Caller:
    """Who a token belongs to, if it opens what is asked.

    Args:
        db: The database.
        token: The whole key as the caller sent it.
        scope: What is asked.
        experiment_id: The experiment that it is asked for; None if it is about none.

    Raises:
        KeyRefused: Unknown, revoked or expired key; the message doesn't say which.
        KeyLacksScope: The key is valid, but not for this.
    """
    caller = _known(db, token, scope)
    if caller.experiment_id is not None and caller.experiment_id != experiment_id:
        raise KeyLacksScope(f"the API key {caller.id} belongs to the job of another experiment")
    return caller


def verify_job(db: Database, token: str) -> Caller:
    """The job that a token belongs to, whichever experiment's; whoever asks looks at `experiment_id`.

    Raises:
        KeyRefused: Unknown, revoked or expired token.
        KeyLacksScope: It is no job's.
    """
    return _known(db, token, Scope.INGEST)


def _known(db: Database, token: str, scope: Scope | str) -> Caller:
    match = _KEY.match(token)
    with db.read() as session:
        row = session.get(ApiKey, match[1]) if match else None
        moment = now(session)
    digest = hashlib.sha256((match[2] if match else token).encode(errors="replace")).digest()
    known = hmac.compare_digest(row.secret_hash if row else _NOBODY, digest)
    if row is None or not known or row.revoked_at or (row.expires_at and row.expires_at <= moment):
        raise KeyRefused("the API key is not valid: unknown, revoked or expired")
    scopes = frozenset(included for held in row.scopes for included in _INCLUDES[Scope(held)])
    if scope not in scopes:
        raise KeyLacksScope(f"the API key {row.id} ({row.name}) opens {row.scopes}; this needs `{scope}`")
    return Caller(row.id, row.name, scopes, row.experiment_id)


def revoke(db: Database, key_id: str) -> None:
    """Makes a key useless from now on; once more does nothing.

    Raises:
        NotFound: There is no such key.
    """
    with db.write() as session:
        row = session.get(ApiKey, key_id)
        if row is None:
            raise NotFound("API key", key_id)
        row.revoked_at = row.revoked_at or now(session)


def list_keys(db: Database) -> tuple[KeyView, ...]:
    """People's keys, newest first, without their secrets; the jobs' own are left out."""
    with db.read() as session:
        rows = session.scalars(
            select(ApiKey).where(ApiKey.experiment_id.is_(None)).order_by(ApiKey.created_at.desc(), ApiKey.id)
        )
        return tuple(
            KeyView(
                id=row.id,
                name=row.name,
                scopes=tuple(row.scopes),
                created_at=row.created_at,
                expires_at=row.expires_at,
                revoked_at=row.revoked_at,
            )
            for row in rows
        )


def add_key(
    session: Session,
    name: str,
    scopes: frozenset[Scope],
    *,
    experiment_id: str | None,
    expires_at: datetime | None = None,
) -> NewKey:
    """Makes a key in the caller's transaction; see `create`."""
    # 80 random bits in base 32: enough that ids never meet.
    identifier = "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz234567") for _ in range(16))
    secret = secrets.token_urlsafe(32)
    session.add(
        ApiKey(
            id=identifier,
            name=name,
            secret_hash=hashlib.sha256(secret.encode()).digest(),
            scopes=sorted(scopes),
            experiment_id=experiment_id,
            created_at=now(session),
            expires_at=expires_at,
        )
    )
    session.flush()
    return NewKey(identifier, f"gw_{identifier}_{secret}")


def revoke_of_experiment(session: Session, experiment_id: str) -> None:
    """Makes all keys of an experiment's earlier jobs useless."""
    session.execute(
        update(ApiKey)
        .where(ApiKey.experiment_id == experiment_id, ApiKey.revoked_at.is_(None))
        .values(revoked_at=now(session))
    )


def expire_of_experiment(session: Session, experiment_id: str, moment: datetime, grace_s: float) -> None:
    """Lets an ended experiment's key live on for a while, for events that are still on their way."""
    session.execute(
        update(ApiKey)
        .where(ApiKey.experiment_id == experiment_id, ApiKey.expires_at.is_(None))
        .values(expires_at=moment + timedelta(seconds=grace_s))
    )
