"""Queries: copies of staged entries that share an address, and the readings that need them.

A reading goes through the staged entries in several transactions. It may pass the path of a copy
before the copy is made, and reach the path of the source after that entry was dropped. The copy's
own record, which is read last, has the address. Only readings that began before the copy need this
record. A move within a branch is recorded like a copy, for the same reason.
"""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa

from ebbtide.ids import new_id
from ebbtide.model import ONE_MICROSECOND
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.schema import copies, readings


def record_copy(tx: Transaction, repository_id: str, address: str) -> None:
    """Records the address of a copy or move, in the transaction that stages it."""
    tx.execute(
        sa.insert(copies).values(
            repository_id=repository_id, copy_id=new_id(), address=address, made_at=tx.now()
        )
    )
    drop_copies(tx, repository_id)


def drop_copies(tx: Transaction, repository_id: str) -> None:
    """Deletes ended readings, and the records of copies that no reading needs."""
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
    """Registers a reading of several transactions. It ends after `lasts`. Returns its id."""
    # Copies take the repository's row shared. With the exclusive lock, a copy that is being made at
    # this moment is either seen by this reading, or recorded after the reading began.
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


def end_reading(tx: Transaction, repository_id: str, reading_id: str) -> None:
    """Ends a reading, and deletes the copies that were recorded for it."""
    tx.execute(
        sa.delete(readings).where(
            readings.c.repository_id == repository_id, readings.c.reading_id == reading_id
        )
    )
    drop_copies(tx, repository_id)
