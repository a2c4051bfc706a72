"""Queries: signing keys, and upload tokens that are neither used nor expired."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

import sqlalchemy as sa

from ebbtide.model import ONE_MICROSECOND
from ebbtide.store.metadata.batches import in_batches
from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.released import Dropped, release
from ebbtide.store.metadata.schema import signing_keys, upload_tokens
from ebbtide.store.signing import SigningKey

UNDATED: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""The date of a key whose transaction may still be open. Nobody knows when other processes begin to
sign with it."""


def insert_signing_key(tx: Transaction, key: SigningKey) -> None:
    """Records a key, which signs from the end of this transaction on. Until then other processes
    sign with the older keys. A later transaction gives the key its date, with
    `date_signing_keys`."""
    date_signing_keys(tx)
    tx.execute(
        sa.insert(signing_keys).values(key_id=key.key_id, secret=key.secret, created_at=UNDATED)
    )


def date_signing_keys(tx: Transaction) -> None:
    """Gives a date to keys without one. The date is later than those of all other keys, whatever
    the clocks say."""
    date = signing_keys.c.created_at
    last: datetime | None = tx.execute(sa.select(sa.func.max(date)).where(date < UNDATED)).scalar()
    now = tx.now()
    created_at = now if last is None else max(now, last + ONE_MICROSECOND)
    tx.execute(sa.update(signing_keys).where(date == UNDATED).values(created_at=created_at))


def read_signing_keys(tx: Transaction) -> list[SigningKey]:
    """Returns all keys that are not retired, the newest first."""
    rows = tx.execute(
        sa.select(signing_keys)
        .where(signing_keys.c.secret.is_not(None))
        .order_by(signing_keys.c.created_at.desc(), signing_keys.c.key_id)
    )
    return [SigningKey(row.key_id, row.secret) for row in rows]


def read_verifying_keys(tx: Transaction) -> dict[str, bytes | None]:
    """Returns the secret of each key by its id, or None for a retired key."""
    return {row.key_id: row.secret for row in tx.execute(sa.select(signing_keys))}


def retire_signing_keys(tx: Transaction, *, superseded_before: datetime) -> list[str]:
    """Retires each key whose next newer key was made before `superseded_before`: deletes its
    secret. Returns the ids of these keys. The newest key is never retired."""
    keys = tx.execute(
        sa.select(signing_keys).order_by(signing_keys.c.created_at.desc(), signing_keys.c.key_id)
    ).all()
    retired = [
        key.key_id
        for newer, key in pairwise(keys)
        if key.secret is not None and newer.created_at < superseded_before
    ]
    tx.execute(
        sa.update(signing_keys)
        .where(signing_keys.c.key_id.in_(retired))
        .values(secret=None, retired_at=tx.now())
    )
    return retired


def insert_token(
    tx: Transaction, repository_id: str, address: str, *, expires_at: datetime, token: str
) -> None:
    """Records an upload token: data uploaded to `address` stays until `expires_at`."""
    tx.execute(
        sa.insert(upload_tokens).values(
            repository_id=repository_id,
            address=address,
            created_at=tx.now(),
            expires_at=expires_at,
            token=token,
        )
    )


def find_token(tx: Transaction, repository_id: str, address: str) -> str | None:
    """Returns the token that was given out for an address, or None if it was used. An expired token
    is found until its record is deleted."""
    token: str | None = tx.execute(
        sa.select(upload_tokens.c.token).where(
            upload_tokens.c.repository_id == repository_id, upload_tokens.c.address == address
        )
    ).scalar_one_or_none()
    return token


def is_outstanding(tx: Transaction, repository_id: str, address: str) -> bool:
    """Whether the token of an address is neither used nor expired."""
    found = tx.execute(
        sa.select(upload_tokens.c.address).where(*_outstanding(tx, repository_id, address))
    )
    return found.one_or_none() is not None


def consume_token(
    tx: Transaction, repository_id: str, address: str, *, lease_ttl: timedelta
) -> bool:
    """Uses up the token of an address, and releases the address. Returns false if the token was
    used before, or has expired by the database's clock."""
    # The row is deleted, not just read: on PostgreSQL another transaction may be using the token at
    # this moment.
    expires_at = tx.execute(
        sa.delete(upload_tokens)
        .where(*_outstanding(tx, repository_id, address))
        .returning(upload_tokens.c.expires_at)
    ).scalar_one_or_none()
    if expires_at is None:
        return False
    # The address is released at the token's end, not earlier: until then its holder can upload to
    # the address again.
    release(tx, repository_id, [Dropped(address)], lease_ttl=lease_ttl, since=expires_at)
    return True


def keep_uploads(tx: Transaction, repository_id: str, addresses: Iterable[str]) -> None:
    """Deletes the upload tokens of addresses that content refers to from now on. Some may have no
    token."""
    for batch in in_batches(sorted(set(addresses))):
        tx.execute(
            sa.delete(upload_tokens).where(
                upload_tokens.c.repository_id == repository_id,
                upload_tokens.c.address.in_(batch),
            )
        )


def _outstanding(
    tx: Transaction, repository_id: str, address: str
) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        upload_tokens.c.repository_id == repository_id,
        upload_tokens.c.address == address,
        upload_tokens.c.expires_at > tx.now(),
    )
