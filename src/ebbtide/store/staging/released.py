"""Queries: addresses that lost a reference, and staging tokens that no branch has any more.

A transaction that drops a reference to an uncommitted address also records the address here. Not
for: claiming the addresses (`claims`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final, Literal

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from ebbtide.store.content.entries import is_external
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import in_batches
from ebbtide.store.database.schema import dropped_tokens, released, staged

Sharing = Literal["staged", "committed"] | None
"""Who else has a staged row's address: nobody (None), perhaps another staged row, or a commit."""

STAGED: Final = "staged"
COMMITTED: Final = "committed"


@dataclass(frozen=True, slots=True)
class Dropped:
    """A dropped reference to an address. `size_bytes` is None if the size is not known."""

    address: str
    size_bytes: int | None = None
    sharing: Sharing = None


def release(
    tx: Transaction,
    repository_id: str,
    dropped: Iterable[Dropped],
    *,
    lease_ttl: timedelta,
    since: datetime | None = None,
) -> None:
    """Records that addresses were released. They are due one lease after `since`, by default the
    database's time: until then a reader may still use them. Addresses outside the storage root and
    committed addresses are left out."""
    found = {
        each.address: each
        for each in dropped
        if each.sharing != COMMITTED and not is_external(each.address)
    }
    if not found:
        return
    now = tx.now()
    rows = [
        {
            "repository_id": repository_id,
            "address": address,
            "size_bytes": found[address].size_bytes,
            "shared": found[address].sharing is not None,
            "released_at": now,
            "due_at": (since or now) + lease_ttl,
            "claim_id": None,
            "attempt_count": 0,
        }
        # Sorted, so that two transactions that release the same addresses do not deadlock.
        for address in sorted(found)
    ]
    tx.execute(_insert(tx.dialect_name), rows if len(rows) > 1 else rows[0])


def release_selected(
    tx: Transaction,
    repository_id: str,
    conditions: Iterable[sa.ColumnElement[bool]],
    *,
    lease_ttl: timedelta,
) -> None:
    """Releases the addresses of all staged rows that meet the conditions, as `release` does, in one
    statement.

    On PostgreSQL the caller must have locked these rows, or must otherwise prevent changes to them.
    """
    now = tx.now()
    values: dict[str, Any] = {
        "repository_id": sa.literal(repository_id),
        "address": staged.c.address,
        "size_bytes": sa.func.max(staged.c.size_bytes),
        "shared": sa.func.max(sa.case((staged.c.sharing.is_(None), 0), else_=1)) == 1,
        "released_at": sa.literal(now, released.c.released_at.type),
        "due_at": sa.literal(now + lease_ttl, released.c.due_at.type),
        "attempt_count": sa.literal(0),
    }
    rows = (
        sa.select(*values.values())
        .where(
            staged.c.repository_id == repository_id,
            staged.c.address.is_not(None),
            # The condition of `is_external` in SQL: no address of our own contains a colon.
            ~staged.c.address.contains(":"),
            sa.or_(staged.c.sharing.is_(None), staged.c.sharing == STAGED),
            *conditions,
        )
        .group_by(staged.c.address)
    )
    tx.execute(_insert(tx.dialect_name, tuple(values), rows))


def retain(tx: Transaction, repository_id: str, addresses: Iterable[str]) -> None:
    """Deletes the records of addresses that are needed again: a commit or a staged row has them."""
    for batch in in_batches(sorted(addresses)):
        tx.execute(
            sa.delete(released).where(
                released.c.repository_id == repository_id, released.c.address.in_(batch)
            )
        )


def forget_deleted(tx: Transaction, repository_id: str, addresses: Sequence[str]) -> None:
    """Deletes the records of addresses whose files a run deleted, and the rows staged under dropped
    tokens that have them. `addresses` fit into one statement.

    A record that is not due stays: until then, whoever has a signed URL can write the file again.
    Staged rows come first: `claims.take_apart` locks them before it changes `released`, too.
    """
    tokens = sa.select(dropped_tokens.c.token).where(
        dropped_tokens.c.repository_id == repository_id
    )
    tx.execute(
        sa.delete(staged).where(
            staged.c.repository_id == repository_id,
            staged.c.address.in_(addresses),
            staged.c.token.in_(tokens),
        )
    )
    tx.execute(
        sa.delete(released).where(
            released.c.repository_id == repository_id,
            released.c.address.in_(addresses),
            released.c.due_at <= tx.now(),
        )
    )


def drop_tokens(tx: Transaction, repository_id: str, tokens: Iterable[str]) -> None:
    """Records tokens that no branch has from now on. The reclaimer drops the rows staged under
    them."""
    rows = [
        {"repository_id": repository_id, "token": token, "dropped_at": tx.now()}
        for token in sorted(tokens)
    ]
    if rows:
        tx.execute(sa.insert(dropped_tokens), rows)


def _insert(
    dialect_name: str,
    names: tuple[str, ...] | None = None,
    rows: sa.Select[Any] | None = None,  # a query for the columns `names`
) -> sa.Insert:
    if rows is None or names is None:
        return _insert_values(dialect_name)
    insert = postgresql.insert if dialect_name == "postgresql" else sqlite.insert
    return _merging(insert(released).from_select(names, rows))


@cache
def _insert_values(dialect_name: str) -> sa.Insert:
    """Returns the insert of values. It is built once: building it takes longer than running it."""
    insert = postgresql.insert if dialect_name == "postgresql" else sqlite.insert
    return _merging(insert(released))


def _merging(statement: postgresql.Insert | sqlite.Insert) -> sa.Insert:
    """Makes an insert into `released` update the row of an address that is there already, because
    another reference to it was dropped before. The later `due_at` counts. A claim on the address
    can be cleared: while this reference existed, the reclaimer found it, and did not delete the
    address."""
    earlier, later = released.c.due_at, statement.excluded.due_at
    return statement.on_conflict_do_update(
        index_elements=["repository_id", "address"],
        set_={
            "shared": sa.true(),
            "released_at": statement.excluded.released_at,
            "due_at": sa.case((later > earlier, later), else_=earlier),
            "claim_id": None,
            "attempt_count": 0,
        },
    )
