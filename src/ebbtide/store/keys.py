"""Access keys: who may use the server, and as what.

Not for: what a role allows (the server's routes), or the key that encrypts (`secrets`).
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
    """What a key allows: reading; changing what repositories hold; and all else."""

    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"

    def allows(self, needed: Role) -> bool:
        """Whether the role is the one needed, or more."""
        order = list(Role)
        return order.index(self) >= order.index(needed)

    @classmethod
    def parse(cls, text: str) -> Role:
        """Raises InvalidInput `invalid_argument`."""
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
    """A key that was just made, with the secret, which is never shown again."""

    key: AccessKey
    secret: str = field(repr=False)


class AccessKeys:
    """The access keys of a store."""

    def __init__(self, metadata: Metadata, box: SecretBox) -> None:
        self._metadata = metadata
        self._box = box

    def create(self, role: Role, *, name: str = "") -> KeyPair:
        """Make a key. `name` says whose it is, and stands in the commits that it makes.

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
        """All keys, revoked ones too, the oldest first."""
        with self._metadata.snapshot() as tx:
            return [_key(row) for row in list_keys(tx)]

    def revoke(self, access_key_id: str) -> AccessKey:
        """Refuse a key from now on; one that is revoked already stays so.

        Raises NotFound `key_not_found`.
        """
        with self._metadata.transaction() as tx:
            write_revoked(tx, access_key_id)
            row = find_key(tx, access_key_id)
        if row is None:
            raise NotFound("key_not_found", f"there is no access key {shown(access_key_id)}")
        return _key(row)

    def authenticate(self, access_key_id: str, secret: str) -> AccessKey:
        """The key that the pair is of.

        Raises Denied `key_invalid` for an unknown id, a revoked key and a wrong secret, all alike
        and after the same work; Failed `secret_key_missing` or `secret_key_wrong`.
        """
        with self._metadata.snapshot() as tx:
            row = find_key(tx, access_key_id)
        sealed, bound_to = self._decoy if row is None else (row.secret, _binding_of(row))
        expected = self._box.open(sealed, bound_to=bound_to)
        is_right = hmac.compare_digest(expected, secret.encode("utf-8", "surrogatepass"))
        if row is None or not is_right or row.revoked_at is not None:
            raise Denied("key_invalid", "no such access key, or another secret")
        return _key(row)

    def find(self, access_key_id: str) -> AccessKey | None:
        """The key of that id, for whoever proved before that it is theirs; None for a revoked one.

        Raises Failed `secret_key_missing`, or `secret_key_wrong` for a row that was tampered with.
        """
        with self._metadata.snapshot() as tx:
            row = find_key(tx, access_key_id)
        if row is None or row.revoked_at is not None:
            return None
        self._box.open(row.secret, bound_to=_binding_of(row))
        return _key(row)

    @cached_property
    def _decoy(self) -> tuple[bytes, str]:
        """What is decrypted and compared for an id that nobody has: a secret that nobody has."""
        secret = secrets.token_urlsafe(SECRET_BYTES)
        return self._box.seal(secret.encode(), bound_to=NOBODY), NOBODY


def _binding(access_key_id: str, role: Role) -> str:
    """A secret is encrypted for its id and role: rows that somebody mixed up do not decrypt."""
    return f"{access_key_id} {role}"


def _binding_of(row: KeyRow) -> str:
    return _binding(row.access_key_id, Role(row.role))


def _key(row: KeyRow) -> AccessKey:
    return AccessKey(row.access_key_id, Role(row.role), row.name, row.created_at, row.revoked_at)
