"""Queries: claims released addresses, and forgets them when their objects are deleted.

Not for: releasing addresses (`released`), or deleting objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Final

import sqlalchemy as sa

from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import in_batches
from ebbtide.store.database.schema import dropped_tokens, released, staged
from ebbtide.store.staging.leased import is_unleased
from ebbtide.store.staging.queries import DROPPED_COLUMNS, dropped_of
from ebbtide.store.staging.released import release, retain

_BACKOFF_MIN: Final = timedelta(seconds=1)
_BACKOFF_MAX: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claimed address, to be deleted. `size_bytes` is None if the size is not known."""

    repository_id: str
    address: str
    size_bytes: int | None
    shared: bool
    attempt_count: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """The work that is left to the reclaimer: the number of released addresses, the time of the
    oldest release, and the number of dropped tokens."""

    address_count: int
    oldest_at: datetime | None
    token_count: int


def is_due(tx: Transaction) -> bool:
    """Whether the reclaimer has work: an address is due, or a token was dropped."""
    now = tx.now()
    due = sa.select(released.c.address).where(released.c.due_at <= now, is_unleased(now))
    return any(
        tx.execute(query.limit(1)).first() is not None
        for query in (due, sa.select(dropped_tokens.c.token))
    )


def claim(
    tx: Transaction, claim_id: str, *, lasts: timedelta, amount: int
) -> tuple[list[Claimed], int]:
    """Claims at most `amount` due addresses for the time `lasts`. Returns them, and the number of
    addresses that were looked at.

    If a staged row still has an address, its release is taken back: the transaction that drops the
    row will release it again.
    """
    now = tx.now()
    rows = tx.execute(
        sa.select(
            released.c.repository_id,
            released.c.address,
            released.c.size_bytes,
            released.c.shared,
            released.c.attempt_count,
        )
        .where(released.c.due_at <= now, is_unleased(now))
        .order_by(released.c.due_at)
        .limit(amount)
        .with_for_update(skip_locked=True)
    ).all()
    claimed: list[Claimed] = []
    found = sorted(
        (Claimed(**row._mapping) for row in rows), key=attrgetter("repository_id", "address")
    )
    for repository_id, group in groupby(found, key=attrgetter("repository_id")):
        due = list(group)
        kept = referenced(tx, repository_id, [each.address for each in due if each.shared])
        retain(tx, repository_id, kept)
        mine = [each for each in due if each.address not in kept]
        _put_off(tx, repository_id, mine, until=now + lasts, claim_id=claim_id)
        claimed += mine
    return claimed, len(found)


def referenced(tx: Transaction, repository_id: str, addresses: Iterable[str]) -> set[str]:
    """Returns which of these shared addresses a staged row has, under any token."""
    found: set[str] = set()
    for batch in in_batches(addresses):
        rows = tx.execute(
            sa.select(staged.c.address).where(
                staged.c.repository_id == repository_id,
                staged.c.address.in_(batch),
                staged.c.sharing.is_not(None),
            )
        )
        found.update(rows.scalars())
    return found


def forget(tx: Transaction, claim_id: str, repository_id: str, addresses: Iterable[str]) -> int:
    """Deletes the records of deleted addresses, if the claim still holds. Returns their number."""
    count = 0
    for batch in in_batches(sorted(addresses)):
        count += tx.execute(
            sa.delete(released).where(_mine(claim_id, repository_id, batch))
        ).rowcount
    return count


def put_back(tx: Transaction, claim_id: str, failed: Sequence[Claimed]) -> None:
    """Makes failed addresses due again, after 1 s at first. The wait doubles with each failure, up
    to an hour."""
    now = tx.now()
    for each in failed:
        wait = min(_BACKOFF_MIN * 2 ** min(each.attempt_count, 20), _BACKOFF_MAX)
        tx.execute(
            sa.update(released)
            .where(_mine(claim_id, each.repository_id, [each.address]))
            .values(claim_id=None, due_at=now + wait, attempt_count=each.attempt_count + 1)
        )


def _mine(claim_id: str, repository_id: str, addresses: Sequence[str]) -> sa.ColumnElement[bool]:
    return sa.and_(
        released.c.repository_id == repository_id,
        released.c.address.in_(addresses),
        released.c.claim_id == claim_id,
    )


def _put_off(
    tx: Transaction,
    repository_id: str,
    claimed: Sequence[Claimed],
    *,
    until: datetime,
    claim_id: str,
) -> None:
    for batch in in_batches(each.address for each in claimed):
        tx.execute(
            sa.update(released)
            .where(released.c.repository_id == repository_id, released.c.address.in_(batch))
            .values(claim_id=claim_id, due_at=until)
        )


def take_apart(tx: Transaction, *, lease_ttl: timedelta, amount: int) -> int | None:
    """Releases the addresses of at most `amount` rows staged under one dropped token. Forgets the
    token when no row is left. Returns the number of rows, or None if nothing can be done now."""
    token = tx.execute(
        sa.select(dropped_tokens)
        .order_by(dropped_tokens.c.dropped_at)
        .limit(1)
        .with_for_update(skip_locked=True)
    ).one_or_none()
    if token is None:
        return None
    under = sa.and_(staged.c.repository_id == token.repository_id, staged.c.token == token.token)
    # Rows that a commit has locked at this moment are left for the next call. Waiting for them
    # while holding other rows could be a deadlock.
    paths = (
        tx.execute(
            sa.select(staged.c.path)
            .where(under)
            .order_by(staged.c.path)
            .limit(amount)
            .with_for_update(skip_locked=True)
        )
        .scalars()
        .all()
    )
    for batch in in_batches(paths):
        rows = tx.execute(
            sa.delete(staged).where(under, staged.c.path.in_(batch)).returning(*DROPPED_COLUMNS)
        ).all()
        release(
            tx,
            token.repository_id,
            dropped_of(rows),
            lease_ttl=lease_ttl,
            since=token.dropped_at,
        )
    is_empty = tx.execute(sa.select(staged.c.path).where(under).limit(1)).first() is None
    if is_empty:
        tx.execute(
            sa.delete(dropped_tokens).where(
                dropped_tokens.c.repository_id == token.repository_id,
                dropped_tokens.c.token == token.token,
            )
        )
    return len(paths) if paths or is_empty else None


def read_backlog(tx: Transaction) -> Backlog:
    """Returns how much work is left to the reclaimer."""
    row = tx.execute(
        sa.select(
            sa.func.count().label("address_count"),
            sa.func.min(released.c.released_at).label("oldest_at"),
        )
    ).one()
    tokens = tx.execute(sa.select(sa.func.count()).select_from(dropped_tokens)).scalar_one()
    return Backlog(row.address_count, row.oldest_at, tokens)
