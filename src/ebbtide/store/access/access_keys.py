"""Access keys: the users of the server, their roles, and the grants of roles in single
repositories.

A grant names the repository by its id. Therefore a later repository of the same name has none. Not
for: the rights of a role (the server's routes), or the key that encrypts (`secrets`).
"""

from __future__ import annotations

import base64
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Final

import sqlalchemy as sa

from ebbtide.documents import HIDDEN, documented
from ebbtide.errors import Conflict, Denied, InvalidInput, NotFound, UnknownRepository
from ebbtide.store.access.secrets import SecretBox
from ebbtide.store.database.dialects import insert_on
from ebbtide.store.database.engine import Metadata, Transaction
from ebbtide.store.database.prepared import Prepared
from ebbtide.store.database.rows import Rows, values_of
from ebbtide.store.database.schema import access_key_grants, access_keys, repositories
from ebbtide.store.names import check_text
from ebbtide.store.repositories.repository_rows import find_repository, lock_all_repositories
from ebbtide.text import shown


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One access key as it is stored. Its secret is encrypted."""

    access_key_id: str
    secret: bytes = field(repr=False)
    role: str
    name: str
    created_at: datetime
    revoked_at: datetime | None


KEYS: Final = Rows(access_keys, KeyRow, access_keys.c.access_key_id)
_BY_ID: Final = KEYS.select(KEYS.key == sa.bindparam("access_key_id"))
"""Built once: every request runs this statement, and building it takes longer than running it."""


def find_key(tx: Transaction, access_key_id: str) -> KeyRow | None:
    """Returns the key with this id, also if it was revoked."""
    return KEYS.one(tx, _BY_ID, {"access_key_id": access_key_id})


def list_keys(tx: Transaction) -> list[KeyRow]:
    """Returns all keys, the oldest first."""
    return KEYS.all(tx, KEYS.select().order_by(access_keys.c.created_at, KEYS.key))


def write_revoked(tx: Transaction, access_key_id: str) -> None:
    """Revokes a key now, unless it was revoked before."""
    KEYS.update(tx, access_key_id, access_keys.c.revoked_at.is_(None), revoked_at=tx.now())


def insert_key_once(tx: Transaction, row: KeyRow) -> None:
    """Records a key, unless there is one with this id, perhaps since this moment."""
    insert = insert_on(tx.connection)
    tx.execute(insert(access_keys).values(values_of(row)).on_conflict_do_nothing())


ID_PREFIX: Final = "EBBT"
PERSON_PREFIX: Final = "OIDC"
"""The ids of persons begin with it, who log in by an issuer (`persons`)."""
ID_BYTES: Final = 10
SECRET_BYTES: Final = 30
NAME_BYTES_MAX: Final = 255
NOBODY: Final = "nobody"
_GIVEN_ID: Final = re.compile(r"[A-Za-z0-9_]{16,128}")
_GIVEN_SECRET: Final = re.compile(r"[!-~]{16,255}")


class Role(StrEnum):
    """The role of a key: readers read, writers also change repositories' content, admins do all.
    `none` allows only what needs no repository."""

    NONE = "none"
    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"

    def allows(self, needed: Role) -> bool:
        """Whether the role includes the one that is needed."""
        order = list(Role)
        return order.index(self) >= order.index(needed)

    @classmethod
    def parse(cls, text: str) -> Role:
        """Returns the role of that name. Raises InvalidInput `invalid_argument`."""
        if text not in list(cls):
            raise InvalidInput(
                "invalid_argument", f"there is no role {shown(text)}: write {', '.join(cls)}"
            )
        return cls(text)


@documented
@dataclass(frozen=True, slots=True)
class AccessKey:
    """One access key, without its secret. `of_login` has the roles in single repositories, by their
    ids, that a login by an issuer gave; they count besides the key's grants."""

    access_key_id: str
    role: Role
    name: str
    created_at: datetime
    revoked_at: datetime | None
    of_login: Mapping[str, Role] = field(default_factory=dict, hash=False, metadata=HIDDEN)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A key with its secret, which only the answer to `create` shows."""

    key: AccessKey
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class GivenKey:
    """The id and secret of a key that clients have already, such as one of lakeFS."""

    access_key_id: str
    secret: str = field(repr=False)

    def check(self) -> None:
        """Raises InvalidInput `invalid_argument` unless all interfaces can take this key."""
        is_of_person = self.access_key_id.startswith(PERSON_PREFIX)
        if is_of_person or not _GIVEN_ID.fullmatch(self.access_key_id):
            raise InvalidInput(
                "invalid_argument",
                f"{shown(self.access_key_id)} cannot be the id of a key: use 16 to 128 letters, "
                f"digits and underscores, not beginning with {PERSON_PREFIX}",
            )
        if not _GIVEN_SECRET.fullmatch(self.secret):
            raise InvalidInput(
                "invalid_argument",
                "this cannot be the secret of a key: use 16 to 255 printable ASCII characters "
                "without blanks",
            )


class AccessKeys:
    """The access keys of a store."""

    def __init__(self, metadata: Metadata, box: SecretBox) -> None:
        self._metadata = metadata
        self._box = box
        is_named = access_keys.c.access_key_id == sa.bindparam("key", type_=sa.Text)
        self._by_id = Prepared(metadata, KEYS.select(is_named))

    def create(self, role: Role, *, name: str = "", given: GivenKey | None = None) -> KeyPair:
        """Makes a key, or takes over a given one. `name` says who uses the key. Commits made with
        the key record the name.

        Raises InvalidInput `invalid_argument`, Conflict `key_exists` if the given id was ever used
        here, Failed `secret_key_missing`.
        """
        check_text("the name", name, bytes_max=NAME_BYTES_MAX)
        if given is None:
            key_id = ID_PREFIX + base64.b32encode(secrets.token_bytes(ID_BYTES)).decode()
            given = GivenKey(key_id, secrets.token_urlsafe(SECRET_BYTES))
        given.check()
        key_id, secret = given.access_key_id, given.secret
        sealed = self._box.seal(secret.encode(), bound_to=_binding(key_id, role))
        with self._metadata.transaction() as tx:
            if find_key(tx, key_id) is not None:
                raise Conflict(
                    "key_exists", f"there is an access key {key_id} already, perhaps a revoked one"
                )
            row = KeyRow(key_id, sealed, role, name, tx.now(), None)
            KEYS.insert(tx, row)
        return KeyPair(_key(row), secret)

    def list(self) -> list[AccessKey]:
        """Returns all keys, also revoked ones, the oldest first."""
        with self._metadata.snapshot() as tx:
            return [_key(row) for row in list_keys(tx)]

    def revoke(self, access_key_id: str) -> AccessKey:
        """Revokes a key: it is refused from now on. A revoked key stays revoked.

        Raises NotFound `key_not_found`.
        """
        with self._metadata.transaction() as tx:
            write_revoked(tx, access_key_id)
            row = find_key(tx, access_key_id)
        if row is None:
            raise NotFound("key_not_found", f"there is no access key {shown(access_key_id)}")
        return _key(row)

    def authenticate(self, access_key_id: str, secret: str) -> AccessKey:
        """Returns the key of an id, if the secret is right.

        Raises Denied `key_invalid` for an unknown id, a revoked key or a wrong secret. The error
        and the work are the same for all three. Raises Failed `secret_key_missing` or
        `secret_key_wrong`.
        """
        row = self._row(access_key_id)
        key = self.verified(row, same_as(secret))
        if key is None:
            raise Denied("key_invalid", "the access key does not exist, or the secret is wrong")
        return key

    def verified(self, row: KeyRow | None, is_right: Callable[[bytes], bool]) -> AccessKey | None:
        """Returns the key of a row whose secret is right, unless it was revoked. Calls `is_right`
        without a row, too, so that this takes as long. Raises Failed `secret_key_missing` or
        `secret_key_wrong`."""
        sealed, bound_to = self._decoy if row is None else (row.secret, _binding_of(row))
        can_enter = is_right(self._box.open(sealed, bound_to=bound_to))
        return _key(row) if row is not None and can_enter and row.revoked_at is None else None

    def find(self, access_key_id: str) -> AccessKey | None:
        """Returns the key of an id, or None if it is unknown or revoked.

        The caller must have checked that the user owns the key. Raises Failed `secret_key_missing`,
        or `secret_key_wrong` for a row that was tampered with.
        """
        row = self._row(access_key_id)
        if row is None or row.revoked_at is not None:
            return None
        self._box.open(row.secret, bound_to=_binding_of(row))
        return _key(row)

    def find_pair(self, access_key_id: str) -> KeyPair | None:
        """Returns the key of an id with its secret, or None if the id is unknown or revoked.

        For signatures, which both sides compute with the secret. Raises Failed
        `secret_key_missing` or `secret_key_wrong`.
        """
        row = self._row(access_key_id)
        if row is None or row.revoked_at is not None:
            return None
        return KeyPair(_key(row), self._box.open(row.secret, bound_to=_binding_of(row)).decode())

    def of_person(self, tx: Transaction, access_key_id: str, name: str) -> AccessKey:
        """Returns the key of a person who logs in by an issuer, and makes it at the first login.

        It has the role `none`, and a secret that nobody knows: it only names the person. Raises
        Denied `login_refused` if it was revoked, Failed `secret_key_missing`.
        """
        secret = secrets.token_urlsafe(SECRET_BYTES)
        sealed = self._box.seal(secret.encode(), bound_to=_binding(access_key_id, Role.NONE))
        insert_key_once(tx, KeyRow(access_key_id, sealed, Role.NONE, name, tx.now(), None))
        KEYS.update(tx, access_key_id, name=name)
        row = find_key(tx, access_key_id)
        assert row is not None
        if row.revoked_at is not None:
            raise Denied(
                "login_refused", f"an admin revoked {access_key_id}, the key of your logins"
            )
        return _key(row)

    def _row(self, access_key_id: str) -> KeyRow | None:
        """Returns the row of an id, also of a revoked key. Each request needs one."""
        found = self._by_id.first({"key": access_key_id})
        return None if found is None else KEYS.of(self._by_id.decoded(found, slice(None)))

    @cached_property
    def _decoy(self) -> tuple[bytes, str]:
        """A secret that no key has. It is decrypted and compared if an id is unknown."""
        secret = secrets.token_urlsafe(SECRET_BYTES)
        return self._box.seal(secret.encode(), bound_to=NOBODY), NOBODY


def same_as(secret: str) -> Callable[[bytes], bool]:
    """Returns the check that a secret is this one, in constant time."""
    given = secret.encode("utf-8", "surrogatepass")
    return lambda expected: hmac.compare_digest(expected, given)


def _binding(access_key_id: str, role: Role) -> str:
    """Returns the text to which a secret is bound. A secret in another key's row does not
    decrypt."""
    return f"{access_key_id} {role}"


def _binding_of(row: KeyRow) -> str:
    return _binding(row.access_key_id, Role(row.role))


def _key(row: KeyRow) -> AccessKey:
    return AccessKey(row.access_key_id, Role(row.role), row.name, row.created_at, row.revoked_at)


@dataclass(frozen=True, slots=True)
class GrantRow:
    """One grant as it is stored. `seal` binds key, repository and role to each other."""

    access_key_id: str
    repository_id: str
    role: str
    seal: bytes = field(repr=False)
    created_at: datetime


def write_grant(tx: Transaction, row: GrantRow) -> None:
    """Records a grant. It replaces an earlier one of the same key and repository."""
    delete_grant(tx, row.access_key_id, row.repository_id)
    tx.execute(sa.insert(access_key_grants).values(values_of(row)))


def delete_grant(tx: Transaction, access_key_id: str, repository_id: str) -> int:
    """Deletes a grant. Returns how many there were: 0 or 1."""
    done = tx.execute(
        sa.delete(access_key_grants).where(
            access_key_grants.c.access_key_id == access_key_id,
            access_key_grants.c.repository_id == repository_id,
        )
    )
    return int(done.rowcount)


_OF_KEY: Final = sa.select(access_key_grants).where(
    access_key_grants.c.access_key_id == sa.bindparam("access_key_id")
)
"""Built once: every request of a key with grants runs this statement."""


@documented
@dataclass(frozen=True, slots=True)
class Grant:
    """The role of a key in one repository."""

    access_key_id: str
    repository_id: str
    repository: str
    role: Role


class Grants:
    """The grants of a store."""

    def __init__(self, metadata: Metadata, box: SecretBox) -> None:
        self._metadata = metadata
        self._box = box

    def add(self, access_key_id: str, repository: str, role: Role) -> Grant:
        """Gives a key a role in a live repository. It replaces the key's earlier role there.

        A role that the key has in the whole store stays: the higher of both counts. Raises NotFound
        `key_not_found` (also for a revoked key) or `repository_not_found`, InvalidInput
        `invalid_argument` for the role `none`, Failed `secret_key_missing`.
        """
        if role is Role.NONE:
            raise InvalidInput(
                "invalid_argument",
                "a grant gives a role: 'ebbtide key revoke-grant' takes it away",
            )
        with self._metadata.transaction() as tx:
            # A repository that is being deleted gets no grant afterwards.
            lock_all_repositories(tx, "share")
            key = find_key(tx, access_key_id)
            if key is None or key.revoked_at is not None:
                raise _no_key(access_key_id)
            info = find_repository(tx, repository)
            if info is None:
                raise UnknownRepository(
                    "repository_not_found",
                    f"there is no repository {shown(repository)}: 'ebbtide repo list' lists them",
                )
            bound_to = _grant_binding(access_key_id, info.repository_id, role)
            seal = self._box.seal(b"", bound_to=bound_to)
            write_grant(tx, GrantRow(access_key_id, info.repository_id, role, seal, tx.now()))
        return Grant(access_key_id, info.repository_id, info.name, role)

    def remove(self, access_key_id: str, repository: str) -> bool:
        """Takes away the role of a key in a live repository. Returns whether there was one. The
        role in the whole store stays.

        Raises NotFound `key_not_found`, `repository_not_found`.
        """
        with self._metadata.transaction() as tx:
            if find_key(tx, access_key_id) is None:
                raise _no_key(access_key_id)
            info = find_repository(tx, repository)
            if info is None:
                raise UnknownRepository(
                    "repository_not_found",
                    f"there is no repository {shown(repository)}, and so no grants in it",
                )
            return delete_grant(tx, access_key_id, info.repository_id) > 0

    def list(self) -> list[Grant]:
        """Returns all grants, by key and name of the repository."""
        columns = (
            access_key_grants.c.access_key_id,
            access_key_grants.c.repository_id,
            repositories.c.name,
            access_key_grants.c.role,
        )
        with self._metadata.snapshot() as tx:
            rows = tx.execute(
                sa.select(*columns)
                .join(
                    repositories,
                    repositories.c.repository_id == access_key_grants.c.repository_id,
                )
                .order_by(columns[0], columns[2], columns[1])
            ).all()
        return [
            Grant(row.access_key_id, row.repository_id, row.name, Role(row.role)) for row in rows
        ]

    def of(self, access_key_id: str) -> dict[str, Role]:
        """Returns the roles of a key by the ids of repositories.

        Raises Failed `secret_key_missing`, or `secret_key_wrong` for a row that was tampered with.
        """
        with self._metadata.snapshot() as tx:
            rows = tx.execute(_OF_KEY, {"access_key_id": access_key_id}).all()
        found: dict[str, Role] = {}
        for row in rows:
            role = Role(row.role)
            self._box.open(
                row.seal, bound_to=_grant_binding(access_key_id, row.repository_id, role)
            )
            found[row.repository_id] = role
        return found


def _grant_binding(access_key_id: str, repository_id: str, role: Role) -> str:
    """Returns the text to which the seal of a grant is bound: write access to the database alone is
    not enough to make a grant."""
    return f"grant {access_key_id} {repository_id} {role}"


def _no_key(access_key_id: str) -> NotFound:
    return NotFound("key_not_found", f"there is no access key {shown(access_key_id)} in use")
