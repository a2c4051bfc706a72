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

from ebbtide.errors import Denied, InvalidInput, NotFound
from ebbtide.escaping import shown
from ebbtide.store.metadata.engine import Metadata
from ebbtide.store.metadata.keys import (
    KeyRow,
    find_key,
    insert_key,
    list_keys,
    write_revoked,
)
from ebbtide.store.names import check_text
from ebbtide.store.secrets import SecretBox

ID_PREFIX: Final = "EBBT"
ID_BYTES: Final = 10
SECRET_BYTES: Final = 30
NAME_BYTES_MAX: Final = 255
NOBODY: Final = "nobody"


class Role(StrEnum):
    """The role of a key: readers read, writers also change repositories' content, admins do all."""

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
    """A new key with its secret, which is never shown again."""

    key: AccessKey
    secret: str = field(repr=False)


class AccessKeys:
    """The access keys of a store."""

    def __init__(self, metadata: Metadata, box: SecretBox) -> None:
        self._metadata = metadata
        self._box = box

    def create(self, role: Role, *, name: str = "") -> KeyPair:
        """Makes a key. `name` says who uses it, and is written into the commits that it makes.

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
        with self._metadata.snapshot() as tx:
            row = find_key(tx, access_key_id)
        sealed, bound_to = self._decoy if row is None else (row.secret, _binding_of(row))
        expected = self._box.open(sealed, bound_to=bound_to)
        is_right = hmac.compare_digest(expected, secret.encode("utf-8", "surrogatepass"))
        if row is None or not is_right or row.revoked_at is not None:
            raise Denied("key_invalid", "the access key does not exist, or the secret is wrong")
        return _key(row)

    def find(self, access_key_id: str) -> AccessKey | None:
        """Returns the key of an id, or None if it is unknown or revoked.

        The caller has proof that the user owns the key. Raises Failed `secret_key_missing`, or
        `secret_key_wrong` for a row that was tampered with.
        """
        with self._metadata.snapshot() as tx:
            row = find_key(tx, access_key_id)
        if row is None or row.revoked_at is not None:
            return None
        self._box.open(row.secret, bound_to=_binding_of(row))
        return _key(row)

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
