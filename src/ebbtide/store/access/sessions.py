"""Sessions: the logins to the server's pages, of access keys and of persons, and their ends.

They are in the database, so that every server of the store knows them. Not for: cookies and forms
(the server's pages), the tokens of an issuer of OpenID Connect (the server), or the keys
(`access_keys`).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa

from ebbtide.errors import Failed
from ebbtide.ids import CLOCKS_APART_MAX
from ebbtide.store.access.access_keys import PERSON_PREFIX, AccessKey, AccessKeys, Role
from ebbtide.store.access.secrets import SecretBox
from ebbtide.store.database.engine import Metadata, Transaction
from ebbtide.store.database.rows import Rows
from ebbtide.store.database.schema import sessions

DIGEST_BYTES: Final = 15


@dataclass(frozen=True, slots=True)
class Person:
    """A person, as an issuer names them. `subject` is theirs for ever (OpenID Connect Core 1.0,
    section 2); `name` can change."""

    issuer: str
    subject: str
    name: str

    @property
    def access_key_id(self) -> str:
        """The id of the key that names the person in the store. No two persons have the same."""
        named = json.dumps([self.issuer, self.subject]).encode()
        digest = hashlib.sha256(named).digest()[:DIGEST_BYTES]
        return PERSON_PREFIX + base64.b32encode(digest).decode()


@dataclass(frozen=True, slots=True)
class PersonLogin:
    """What one login gave. `repositories` has roles by ids of repositories. `logout_url` ends the
    login at the issuer, if it has an address for this."""

    issuer: str
    role: Role
    repositories: Mapping[str, Role] = field(default_factory=dict)
    logout_url: str | None = field(default=None, repr=False)

    def to_bytes(self) -> bytes:
        """Returns the login as bytes, for the seal of its session."""
        return json.dumps(
            {
                "issuer": self.issuer,
                "role": self.role,
                "repositories": dict(self.repositories),
                "logout_url": self.logout_url,
            }
        ).encode()

    @classmethod
    def parse(cls, data: bytes) -> PersonLogin:
        """Returns the login of such bytes, which come from a seal that was opened."""
        found = json.loads(data)
        roles = {each: Role(role) for each, role in found["repositories"].items()}
        return cls(found["issuer"], Role(found["role"]), roles, found["logout_url"])


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One session as it is stored. `seal` authenticates the row. If a person logged in by an
    issuer, it also holds what the login gave, encrypted."""

    token_hash: str
    access_key_id: str
    seal: bytes = field(repr=False)
    created_at: datetime
    expires_at: datetime


SESSIONS: Final = Rows(sessions, SessionRow, sessions.c.token_hash)


def delete_session(tx: Transaction, token_hash: str) -> None:
    """Deletes a session, if it exists."""
    tx.execute(sa.delete(sessions).where(sessions.c.token_hash == token_hash))


def delete_ended_sessions(tx: Transaction) -> None:
    """Deletes all sessions that have ended."""
    tx.execute(sa.delete(sessions).where(sessions.c.expires_at <= tx.now()))


TOKEN_BYTES: Final = 32
_FORMS: Final = b"ebbtide forms"


@dataclass(frozen=True, slots=True)
class Session:
    """A login. `token` is known to the browser alone. If a person logged in by an issuer, `key` has
    the roles of the login, and `logout_url` may end the login at the issuer."""

    key: AccessKey
    token: str = field(repr=False)
    expires_at: datetime
    logout_url: str | None = field(default=None, repr=False)

    @property
    def form_token(self) -> str:
        """The text in every form of the session, so that forms of other sites are refused.

        It is computed from the token, and does not reveal it.
        """
        return hmac.new(self.token.encode(), _FORMS, hashlib.sha256).hexdigest()


class Sessions:
    """The sessions of a store."""

    def __init__(
        self,
        metadata: Metadata,
        keys: AccessKeys,
        box: SecretBox,
        *,
        ttl: timedelta,
        person_ttl: timedelta,
        issuer: str | None,
    ) -> None:
        self._metadata = metadata
        self._keys = keys
        self._box = box
        self._ttl = ttl
        self._person_ttl = person_ttl
        self._issuer = issuer

    def start(self, access_key_id: str, secret: str) -> Session:
        """Starts a session. Raises as `AccessKeys.authenticate` does."""
        key = self._keys.authenticate(access_key_id, secret)
        token = secrets.token_urlsafe(TOKEN_BYTES)
        with self._metadata.transaction() as tx:
            expires_at = self._insert(tx, token, access_key_id, self._ttl, b"")
        return Session(key, token, expires_at)

    def start_of(self, person: Person, login: PersonLogin) -> Session:
        """Starts a session of a person, whom the caller has authenticated.

        It has the roles of the login until its end, and ends early if the person's key is revoked.
        Raises Denied `login_refused` if it was revoked before, Failed `secret_key_missing`.
        """
        token = secrets.token_urlsafe(TOKEN_BYTES)
        with self._metadata.transaction() as tx:
            key = self._keys.of_person(tx, person.access_key_id, person.name)
            expires_at = self._insert(
                tx, token, key.access_key_id, self._person_ttl, login.to_bytes()
            )
        return Session(_with_roles(key, login), token, expires_at, login.logout_url)

    def _insert(
        self, tx: Transaction, token: str, access_key_id: str, ttl: timedelta, content: bytes
    ) -> datetime:
        """Records a session, whose seal holds `content`. Returns its end."""
        delete_ended_sessions(tx)
        now = tx.now()
        expires_at = now + ttl
        token_hash = _hash(token)
        seal = self._box.seal(content, bound_to=_binding(token_hash, access_key_id, expires_at))
        SESSIONS.insert(tx, SessionRow(token_hash, access_key_id, seal, now, expires_at))
        return expires_at

    def find(self, token: str) -> Session | None:
        """Returns the session of a token, or None.

        None means that the token is unknown, its session has ended, its key was revoked, or it is
        of an issuer that the settings no longer name. Raises Failed `secret_key_missing`.
        """
        with self._metadata.snapshot() as tx:
            row = SESSIONS.by_id(tx, _hash(token))
            if row is None or row.expires_at <= tx.now():
                return None
            # A clock was ahead when it began, so that it would last for that much longer.
            if row.created_at > tx.now() + CLOCKS_APART_MAX:
                return None
        try:
            bound_to = _binding(row.token_hash, row.access_key_id, row.expires_at)
            content = self._box.open(row.seal, bound_to=bound_to)
            key = self._keys.find(row.access_key_id)
        except Failed as error:
            if error.kind != "secret_key_wrong":
                raise
            # The row was forged, or sealed with an earlier secret key. A new key ends all sessions.
            return None
        if key is None:
            return None
        if not content:
            return Session(key, token, row.expires_at)
        login = PersonLogin.parse(content)
        if login.issuer != self._issuer:
            return None
        return Session(_with_roles(key, login), token, row.expires_at, login.logout_url)

    def end(self, token: str) -> None:
        """Ends a session."""
        with self._metadata.transaction() as tx:
            delete_session(tx, _hash(token))


def _with_roles(key: AccessKey, login: PersonLogin) -> AccessKey:
    """Returns the key of a person with the roles of a login in place of its own."""
    return replace(key, role=login.role, of_login=login.repositories)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _binding(token_hash: str, access_key_id: str, expires_at: datetime) -> str:
    return f"session {token_hash} {access_key_id} {expires_at.isoformat()}"
