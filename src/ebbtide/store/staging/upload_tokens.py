"""Queries: upload tokens that are neither used nor expired."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import sqlalchemy as sa

from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import in_batches
from ebbtide.store.database.schema import upload_tokens
from ebbtide.store.staging.released import Dropped, release


def insert_token(
    tx: Transaction, repository_id: str, address: str, *, expires_at: datetime, token: str
) -> None:
    """Records an upload token: data uploaded to `address` stays until `expires_at`."""
    insert_tokens(tx, repository_id, [address], expires_at=expires_at, token=token)


def insert_tokens(
    tx: Transaction,
    repository_id: str,
    addresses: Iterable[str],
    *,
    expires_at: datetime,
    token: str,
) -> None:
    """Records one upload token for several addresses, as `insert_token` does for one."""
    now = tx.now()
    rows = [
        {
            "repository_id": repository_id,
            "address": address,
            "created_at": now,
            "expires_at": expires_at,
            "token": token,
        }
        for address in addresses
    ]
    if rows:
        tx.execute(sa.insert(upload_tokens), rows)


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


def keep_uploads(tx: Transaction, repository_id: str, addresses: Iterable[str]) -> datetime | None:
    """Deletes the upload tokens of addresses that content refers to from now on. Some may have no
    token.

    Returns the latest end of these tokens, or None. Until then somebody may have a locator: the
    content must be leased as long.
    """
    ends: list[datetime] = []
    for batch in in_batches(sorted(set(addresses))):
        ends += tx.execute(
            sa.delete(upload_tokens)
            .where(
                upload_tokens.c.repository_id == repository_id,
                upload_tokens.c.address.in_(batch),
            )
            .returning(upload_tokens.c.expires_at)
        ).scalars()
    return max(ends, default=None)


def _outstanding(
    tx: Transaction, repository_id: str, address: str
) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        upload_tokens.c.repository_id == repository_id,
        upload_tokens.c.address == address,
        upload_tokens.c.expires_at > tx.now(),
    )
