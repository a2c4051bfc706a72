"""Queries: access keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.schema import access_keys


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
