"""Queries: copies that share the address of a staged entry, and readings that must know of them.

Whoever reads staged entries in several transactions may have passed the copy's path before it was
made, and come to the source's after it was dropped. The copy's own record, read last, has the
address. It matters to readings that had begun before the copy, and to no others.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sa

from ebbtide.ids import new_id
from ebbtide.model import ONE_MICROSECOND
from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.schema import copies, readings


def record_copy(tx: Transaction, repository_id: str, address: str) -> None:
    """Keep the address of a copy, in the transaction that stages it."""
    tx.execute(
        sa.insert(copies).values(
            repository_id=repository_id, copy_id=new_id(), address=address, made_at=tx.now()
        )
    )
    drop_copies(tx, repository_id)


def drop_copies(tx: Transaction, repository_id: str) -> None:
    """Drop the records, and readings, that can matter no more."""
    now = tx.now()
    mine = readings.c.repository_id == repository_id
    tx.execute(sa.delete(readings).where(mine, readings.c.ends_at <= now))
    oldest = tx.execute(sa.select(sa.func.min(readings.c.started_at)).where(mine)).scalar_one()
    tx.execute(
        sa.delete(copies).where(
            copies.c.repository_id == repository_id,
            copies.c.made_at < (now if oldest is None else oldest),
        )
    )


def begin_reading(tx: Transaction, repository_id: str, *, lasts: timedelta) -> str:
    """Register one who reads in several transactions, for as long; its id."""
    # Serialized with copies, which take the row shared: one that is being made right now is either
    # seen by this reading or recorded after it began.
    tx.lock_repository(repository_id, "exclusive")
    now = tx.now()
    reading_id = new_id()
    tx.execute(
        sa.insert(readings).values(
            repository_id=repository_id,
            reading_id=reading_id,
            started_at=now - ONE_MICROSECOND,
            ends_at=now + lasts,
        )
    )
    return reading_id


def is_reading(tx: Transaction, repository_id: str, reading_id: str) -> bool:
    """Whether a reading is registered and has not run out of time."""
    ends_at: datetime | None = tx.execute(
        sa.select(readings.c.ends_at).where(
            readings.c.repository_id == repository_id, readings.c.reading_id == reading_id
        )
    ).scalar_one_or_none()
    return ends_at is not None and ends_at > tx.now()


def end_reading(tx: Transaction, repository_id: str, reading_id: str) -> None:
    """End a reading, and what was kept for it."""
    tx.execute(
        sa.delete(readings).where(
            readings.c.repository_id == repository_id, readings.c.reading_id == reading_id
        )
    )
    drop_copies(tx, repository_id)
