"""Access keys: the users of the server, and their roles.

Not for: the rights of a role (the server's routes), or the key that encrypts (`secrets`).
"""

from __future__ import annotations

import base64
import hmac
import secrets
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Final

import sqlalchemy as sa

from ebbtide.errors import Denied, InvalidInput, NotFound
from ebbtide.escaping import shown
from ebbtide.store.access.secrets import SecretBox
from ebbtide.store.database.engine import Metadata, Transaction
from ebbtide.store.database.schema import access_keys
from ebbtide.store.names import check_text


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One access key as it is stored. Its secret is encrypted."""

    access_key_id: str
    secret: bytes = field(repr=False)
    role: str
    name: str
    created_at: datetime
    revoked_at: datetime | None


def insert_key(tx: Transaction, row: KeyRow) -> None:
    """Records a key."""
    tx.execute(
        sa.insert(access_keys).values(
            access_key_id=row.access_key_id,
            secret=row.secret,
            role=row.role,
            name=row.name,
            created_at=row.created_at,
            revoked_at=row.revoked_at,
        )
    )


_BY_ID: Final = sa.select(access_keys).where(
    access_keys.c.access_key_id == sa.bindparam("access_key_id")
)
"""Built once: every request runs this statement, and building it takes longer than running it."""


def find_key(tx: Transaction, access_key_id: str) -> KeyRow | None:
    """Returns the key with this id, also if it was revoked."""
    row = tx.execute(_BY_ID, {"access_key_id": access_key_id}).one_or_none()
    return None if row is None else KeyRow(**row._mapping)


def list_keys(tx: Transaction) -> list[KeyRow]:
    """Returns all keys, the oldest first."""
    rows = tx.execute(
        sa.select(access_keys).order_by(access_keys.c.created_at, access_keys.c.access_key_id)
    )
    return [KeyRow(**row._mapping) for row in rows]


def write_revoked(tx: Transaction, access_key_id: str) -> None:
    """Revokes a key now, unless it was revoked before."""
    tx.execute(
        sa.update(access_keys)
        .where(access_keys.c.access_key_id == access_key_id, access_keys.c.revoked_at.is_(None))
        .values(revoked_at=tx.now())
    )


ID_PREFIX: Final = "EBBT"
ID_BYTES: Final = 10
SECRET_BYTES: Final = 30
NAME_BYTES_MAX: Final = 255
NOBODY: Final = "nobody"


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


@dataclass(frozen=True, slots=True)
class AccessKey:
    """One access key, without its secret."""

    access_key_id: str
    role: Role
    name: str
    created_at: datetime
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A key with its secret, which only the answer to `create` shows."""

    key: AccessKey
    secret: str = field(repr=False)


class AccessKeys:
    """The access keys of a store."""

    def __init__(self, metadata: Metadata, box: SecretBox) -> None:
        self._metadata = metadata
        self._box = box

    def create(self, role: Role, *, name: str = "") -> KeyPair:
        """Makes a key. `name` says who uses the key. Commits made with the key record the name.

        Raises InvalidInput `invalid_argument`, Failed `secret_key_missing`.
        """
        check_text("the name", name, bytes_max=NAME_BYTES_MAX)
        key_id = ID_PREFIX + base64.b32encode(secrets.token_bytes(ID_BYTES)).decode()
        secret = secrets.token_urlsafe(SECRET_BYTES)
        sealed = self._box.seal(secret.encode(), bound_to=_binding(key_id, role))
        with self._metadata.transaction() as tx:
            row = KeyRow(key_id, sealed, role, name, tx.now(), None)
            insert_key(tx, row)
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
        with self._metadata.statement() as tx:
            row = find_key(tx, access_key_id)
        sealed, bound_to = self._decoy if row is None else (row.secret, _binding_of(row))
        expected = self._box.open(sealed, bound_to=bound_to)
        is_right = hmac.compare_digest(expected, secret.encode("utf-8", "surrogatepass"))
        if row is None or not is_right or row.revoked_at is not None:
            raise Denied("key_invalid", "the access key does not exist, or the secret is wrong")
        return _key(row)

    def find(self, access_key_id: str) -> AccessKey | None:
        """Returns the key of an id, or None if it is unknown or revoked.

        The caller must have checked that the user owns the key. Raises Failed `secret_key_missing`,
        or `secret_key_wrong` for a row that was tampered with.
        """
        with self._metadata.statement() as tx:
            row = find_key(tx, access_key_id)
        if row is None or row.revoked_at is not None:
            return None
        self._box.open(row.secret, bound_to=_binding_of(row))
        return _key(row)

    def find_pair(self, access_key_id: str) -> KeyPair | None:
        """Returns the key of an id with its secret, or None if the id is unknown or revoked.

        For signatures, which both sides compute with the secret. Raises Failed
        `secret_key_missing` or `secret_key_wrong`.
        """
        with self._metadata.statement() as tx:
            row = find_key(tx, access_key_id)
        if row is None or row.revoked_at is not None:
            return None
        return KeyPair(_key(row), self._box.open(row.secret, bound_to=_binding_of(row)).decode())

    @cached_property
    def _decoy(self) -> tuple[bytes, str]:
        """A secret that no key has. It is decrypted and compared if an id is unknown."""
        secret = secrets.token_urlsafe(SECRET_BYTES)
        return self._box.seal(secret.encode(), bound_to=NOBODY), NOBODY


def _binding(access_key_id: str, role: Role) -> str:
    """Returns the text to which a secret is bound. A secret in another key's row does not
    decrypt."""
    return f"{access_key_id} {role}"


def _binding_of(row: KeyRow) -> str:
    return _binding(row.access_key_id, Role(row.role))


def _key(row: KeyRow) -> AccessKey:
    return AccessKey(row.access_key_id, Role(row.role), row.name, row.created_at, row.revoked_at)
