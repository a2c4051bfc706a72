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
"""The date of a key whose transaction may still be open: nobody knows when others sign with it."""


def insert_signing_key(tx: Transaction, key: SigningKey) -> None:
    """Keep a key, which signs once the transaction is over. It has no date until a later one calls
    `date_signing_keys`: the older keys sign for as long as this one is open."""
    date_signing_keys(tx)
    tx.execute(
        sa.insert(signing_keys).values(key_id=key.key_id, secret=key.secret, created_at=UNDATED)
    )


def date_signing_keys(tx: Transaction) -> None:
    """Date the keys that have no date: behind all others, whatever clocks say."""
    date = signing_keys.c.created_at
    last: datetime | None = tx.execute(sa.select(sa.func.max(date)).where(date < UNDATED)).scalar()
    now = tx.now()
    created_at = now if last is None else max(now, last + ONE_MICROSECOND)
    tx.execute(sa.update(signing_keys).where(date == UNDATED).values(created_at=created_at))


def read_signing_keys(tx: Transaction) -> list[SigningKey]:
    """All keys that are not retired, the newest first."""
    rows = tx.execute(
        sa.select(signing_keys)
        .where(signing_keys.c.secret.is_not(None))
        .order_by(signing_keys.c.created_at.desc(), signing_keys.c.key_id)
    )
    return [SigningKey(row.key_id, row.secret) for row in rows]


def read_verifying_keys(tx: Transaction) -> dict[str, bytes | None]:
    """The secret of each key by its id; None for those that are retired."""
    return {row.key_id: row.secret for row in tx.execute(sa.select(signing_keys))}


def retire_signing_keys(tx: Transaction, *, superseded_before: datetime) -> list[str]:
    """Drop the secrets of the keys that had a newer one before that instant; their ids. The newest
    key is never among them."""
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
    """Promise that what is uploaded to `address` stays until `expires_at`."""
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
    """The token that was given out for an address; None once it was used, and some time after its
    end."""
    token: str | None = tx.execute(
        sa.select(upload_tokens.c.token).where(
            upload_tokens.c.repository_id == repository_id, upload_tokens.c.address == address
        )
    ).scalar_one_or_none()
    return token


def is_outstanding(tx: Transaction, repository_id: str, address: str) -> bool:
    """Whether the token of an address was neither used nor has expired."""
    found = tx.execute(
        sa.select(upload_tokens.c.address).where(*_outstanding(tx, repository_id, address))
    )
    return found.one_or_none() is not None


def consume_token(
    tx: Transaction, repository_id: str, address: str, *, lease_ttl: timedelta
) -> bool:
    """Use the token of an address up, and release the address; False when it was used, or has
    expired by the database's clock."""
    # Taken, not looked at: on PostgreSQL another transaction may be using it at this moment.
    expires_at = tx.execute(
        sa.delete(upload_tokens)
        .where(*_outstanding(tx, repository_id, address))
        .returning(upload_tokens.c.expires_at)
    ).scalar_one_or_none()
    if expires_at is None:
        return False
    # Not before the token's end: until then whoever has it can upload to the address again.
    release(tx, repository_id, [Dropped(address)], lease_ttl=lease_ttl, since=expires_at)
    return True


def keep_uploads(tx: Transaction, repository_id: str, addresses: Iterable[str]) -> None:
    """Use the tokens of addresses up that content has from now on. Some may have none."""
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
