"""The keys that sign the records of purges (Ed25519). An auditor needs only the public key.

A key is made on first use. Its private half is in the database, encrypted like the secrets of
access keys (`secrets`). Not for: the content of records.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ebbtide.ids import new_id
from ebbtide.store.access.secrets import SecretBox
from ebbtide.store.database.engine import Metadata, Transaction
from ebbtide.store.database.rows import Rows
from ebbtide.store.database.schema import purge_keys
from ebbtide.store.repositories.queries import lock_all_repositories

ALGORITHM: Final = "Ed25519"


@dataclass(frozen=True, slots=True)
class PurgeKeyRow:
    """A key that signs records: its public half in hexadecimal, its private half encrypted."""

    key_id: str
    public_key: str
    secret: bytes
    created_at: datetime


_KEYS: Final = Rows(purge_keys, PurgeKeyRow, purge_keys.c.key_id)


def list_purge_keys(tx: Transaction) -> list[PurgeKeyRow]:
    """Returns all keys, the newest first."""
    return _KEYS.all(tx, _KEYS.select().order_by(purge_keys.c.created_at.desc(), _KEYS.key))


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature, and the public key that verifies it, both in hexadecimal."""

    key_id: str
    public_key: str
    signature: str


class PurgeKeys:
    """The keys of a store that sign records."""

    def __init__(self, metadata: Metadata, box: SecretBox) -> None:
        self._metadata = metadata
        self._box = box

    def public_keys(self) -> dict[str, str]:
        """Returns the public keys in hexadecimal, by id. The first is the newest one, which
        signs."""
        with self._metadata.snapshot() as tx:
            return {row.key_id: row.public_key for row in list_purge_keys(tx)}

    def current(self) -> tuple[str, str]:
        """Returns the id and the public key of the key that signs. Makes a key if there is none.

        Raises Failed `secret_key_missing` or `secret_key_wrong`.
        """
        row = self._row()
        return row.key_id, row.public_key

    def sign(self, message: bytes) -> Signature:
        """Signs a message. Raises as `current` does."""
        row = self._row()
        secret = self._box.open(row.secret, bound_to=_binding(row.key_id))
        signature = Ed25519PrivateKey.from_private_bytes(secret).sign(message)
        return Signature(row.key_id, row.public_key, signature.hex())

    def _row(self) -> PurgeKeyRow:
        with self._metadata.snapshot() as tx:
            found = list_purge_keys(tx)
        return found[0] if found else self._make()

    def _make(self) -> PurgeKeyRow:
        private = Ed25519PrivateKey.generate()
        key_id = new_id()
        sealed = self._box.seal(private.private_bytes_raw(), bound_to=_binding(key_id))
        public = private.public_key().public_bytes_raw().hex()
        with self._metadata.transaction() as tx:
            # If two processes make the first key, the second one waits here, and uses the key of
            # the first.
            lock_all_repositories(tx)
            found = list_purge_keys(tx)
            if found:
                return found[0]
            row = PurgeKeyRow(key_id, public, sealed, tx.now())
            _KEYS.insert(tx, row)
        return row


def is_signed(message: bytes, *, public_key: str, signature: str) -> bool:
    """Whether the key made the signature of the message. False for a text that is no key."""
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        key.verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _binding(key_id: str) -> str:
    return f"purge key {key_id}"
