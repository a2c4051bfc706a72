"""Purges: their records, the addresses that they purged, and the keys that sign the records.

Every new reference to an existing address is checked here. Not for: purging, or the content of
signed records (`ebbtide.purge`), or other references to an address (`gc.references`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ebbtide.documents import HIDDEN, documented, named
from ebbtide.errors import Gone
from ebbtide.ids import new_id
from ebbtide.store.access.secrets import SecretBox
from ebbtide.store.database.engine import Metadata, Transaction
from ebbtide.store.database.rows import Rows, in_batches
from ebbtide.store.database.schema import purge_keys, purged, purges
from ebbtide.store.repositories.repository_rows import lock_all_repositories

CLOSED: Final = ("deleting", "incomplete")
"""The states of a purge whose addresses are closed, but whose files may still exist."""

# Built once: many transactions run these statements, and building them takes longer than running
# them.
_ANY_PURGED: Final = (
    sa.select(purged.c.address)
    .where(purged.c.repository_id == sa.bindparam("repository_id"))
    .limit(1)
)
_PURGED: Final = sa.select(purged.c.address, purged.c.purge_id).where(
    purged.c.repository_id == sa.bindparam("repository_id"),
    purged.c.address.in_(sa.bindparam("addresses", expanding=True)),
)


def find_purged(tx: Transaction, repository_id: str, addresses: Iterable[str]) -> dict[str, str]:
    """Returns the purged ones among `addresses`, each with the id of its purge.

    `addresses` is read in batches, and not at all if the repository has no purged address.
    """
    if tx.execute(_ANY_PURGED, {"repository_id": repository_id}).first() is None:
        return {}
    found: dict[str, str] = {}
    for batch in in_batches(addresses):
        rows = tx.execute(_PURGED, {"repository_id": repository_id, "addresses": batch})
        found.update((row.address, row.purge_id) for row in rows)
    return found


def insert_purged(
    tx: Transaction, repository_id: str, purge_id: str, addresses: Iterable[str]
) -> None:
    """Records purged addresses. An address that an earlier purge recorded keeps the id of that
    purge."""
    now = tx.now()
    for batch in in_batches(addresses):
        known = find_purged(tx, repository_id, batch)
        rows = [
            {
                "repository_id": repository_id,
                "address": address,
                "purge_id": purge_id,
                "purged_at": now,
            }
            for address in batch
            if address not in known
        ]
        if rows:
            tx.execute(sa.insert(purged), rows)


def count_purged(tx: Transaction, repository_id: str, purge_id: str) -> int:
    """Returns the number of addresses that a purge recorded."""
    count: int = tx.execute(
        sa.select(sa.func.count()).where(
            purged.c.repository_id == repository_id, purged.c.purge_id == purge_id
        )
    ).scalar_one()
    return count


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeRow:
    """One purge as it is stored. `request` and `error` are JSON."""

    purge_id: str
    repository_id: str
    repository_name: str = field(metadata=named("repository"))
    state: str
    request: dict[str, Any]
    record_url: str = field(metadata=named("record_path"))
    started_at: datetime
    plan_checksum: str | None = field(default=None, metadata=HIDDEN)
    record_checksum: str | None = field(default=None, metadata=named("record_sha256"))
    error: dict[str, str] | None = None
    closed_at: datetime | None = None
    finished_at: datetime | None = None


PURGES: Final = Rows(purges, PurgeRow, purges.c.purge_id)


def list_purges(tx: Transaction, repository_name: str) -> list[PurgeRow]:
    """Returns the purges of all repositories that had this name, the newest first."""
    query = PURGES.select(purges.c.repository_name == repository_name)
    return PURGES.all(tx, query.order_by(purges.c.purge_id))


def closed_purges(tx: Transaction, repository_id: str) -> list[str]:
    """Returns the ids of a repository's purges whose addresses are closed, and that are not done,
    the newest first."""
    query = sa.select(purges.c.purge_id).where(
        purges.c.repository_id == repository_id, purges.c.state.in_(CLOSED)
    )
    return list(tx.execute(query.order_by(purges.c.purge_id)).scalars())


def move_records(tx: Transaction, repository_id: str, place: Callable[[str], str]) -> None:
    """Sets the folder of each purge of a repository. `place` returns it for a purge's id."""
    query = sa.select(purges.c.purge_id).where(purges.c.repository_id == repository_id)
    for purge_id in list(tx.execute(query).scalars()):
        PURGES.update(tx, purge_id, record_url=place(purge_id))


SHOWN_MAX: Final = 10


def require_not_purged(tx: Transaction, repository_id: str, addresses: Iterable[str]) -> None:
    """Raises Gone `purged` if any of the addresses was purged.

    `tx` is the transaction that makes the new references visible. It has held the repository's row,
    at least shared, since before it read the addresses. A purge takes the row exclusively, so that
    it sees the new references, or is seen here. `details` has `purge_ids` (sorted), `address_count`
    and `addresses` (sorted, the first ten).
    """
    found = find_purged(tx, repository_id, addresses)
    if not found:
        return
    ordered = sorted(found)
    purge_ids = sorted(set(found.values()))
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    raise Gone(
        "purged",
        f"{ordered[0]}{others} was deleted for good by an administrator (purge {purge_ids[0]}): "
        "nothing may refer to it any more",
        purge_ids=purge_ids,
        address_count=len(found),
        addresses=ordered[:SHOWN_MAX],
    )


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
    """The keys of a store that sign records (Ed25519). An auditor needs only the public key.

    A key is made on first use. Its private half is in the database, encrypted like the secrets of
    access keys (`access.secrets`).
    """

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
