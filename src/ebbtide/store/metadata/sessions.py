"""Queries: sessions."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import datetime

import sqlalchemy as sa

from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.schema import sessions


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One session as it is stored."""

    token_hash: str
    access_key_id: str
    seal: bytes = field(repr=False)
    created_at: datetime
    expires_at: datetime


def insert_session(tx: Transaction, row: SessionRow) -> None:
    """Records a session."""
    tx.execute(sa.insert(sessions).values(asdict(row)))


def find_session(tx: Transaction, token_hash: str) -> SessionRow | None:
    """Returns the session with this token hash, also if it has ended."""
    row = tx.execute(sa.select(sessions).where(sessions.c.token_hash == token_hash)).one_or_none()
    return None if row is None else SessionRow(**row._mapping)


def delete_session(tx: Transaction, token_hash: str) -> None:
    """Deletes a session, if it exists."""
    tx.execute(sa.delete(sessions).where(sessions.c.token_hash == token_hash))


def delete_ended_sessions(tx: Transaction) -> None:
    """Deletes all sessions that have ended."""
    tx.execute(sa.delete(sessions).where(sessions.c.expires_at <= tx.now()))
