"""Queries: addresses that lost a reference, leases of such addresses, and staging tokens that no
branch has any more.

A transaction that drops a reference to an uncommitted address also records the address here. A
signed URL reads a staged object without asking the database: until the lease of its address ends,
no run and no reclaimer deletes the object, even if the branch drops it. Not for: claiming the
addresses (`reclaimer`), or leases of commits (`database.commit_rows`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final, Literal

import sqlalchemy as sa

from ebbtide.store.content.entries import is_external
from ebbtide.store.database.dialects import Insert, InsertOn, insert_on
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import in_batches
from ebbtide.store.database.schema import dropped_tokens, leased_addresses, released, staged

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
    tx.execute(_insert(insert_on(tx.connection)), rows if len(rows) > 1 else rows[0])


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
    insert = insert_on(tx.connection)
    tx.execute(_merging(insert(released).from_select(tuple(values), rows)))


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
    Staged rows come first: `reclaimer.take_apart` locks them before it changes `released`, too.
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


@cache
def _insert(insert: InsertOn) -> sa.Insert:
    """Returns the insert of values. It is built once: building it takes longer than running it."""
    return _merging(insert(released))


def _merging(statement: Insert) -> sa.Insert:
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


def are_leased(
    tx: Transaction, repository_id: str, addresses: Collection[str], *, until: datetime
) -> bool:
    """Whether each of the addresses is leased until `until` or longer."""
    count = 0
    for batch in in_batches(sorted(set(addresses))):
        count += tx.execute(
            sa.select(sa.func.count()).where(
                leased_addresses.c.repository_id == repository_id,
                leased_addresses.c.address.in_(batch),
                leased_addresses.c.leased_until >= until,
            )
        ).scalar_one()
    return count == len(set(addresses))


def hold_staged(
    tx: Transaction, repository_id: str, tokens: Collection[str], addresses: Mapping[str, str]
) -> set[str]:
    """Returns the paths whose address is still staged under one of the tokens. `addresses` is path
    → address.

    Until the end of the transaction nobody drops these rows: on PostgreSQL they are locked. The
    caller holds the branch in share mode at least.
    """
    held: set[str] = set()
    for batch in in_batches(sorted(addresses)):
        rows = tx.execute(
            sa.select(staged.c.path, staged.c.address)
            .where(
                staged.c.repository_id == repository_id,
                staged.c.token.in_(sorted(tokens)),
                staged.c.path.in_(batch),
            )
            # In the order in which writers lock rows, so that no two transactions deadlock.
            .order_by(staged.c.token, staged.c.path)
            .with_for_update(read=True)
        )
        held.update(row.path for row in rows if addresses[row.path] == row.address)
    return held


def lease_addresses(
    tx: Transaction, repository_id: str, addresses: Collection[str], *, until: datetime
) -> None:
    """Leases addresses until `until`, or longer if they are leased longer already. Deletes leases
    that have ended."""
    now = tx.now()
    mine = leased_addresses.c.repository_id == repository_id
    tx.execute(sa.delete(leased_addresses).where(mine, leased_addresses.c.leased_until <= now))
    insert = insert_on(tx.connection)
    statement = insert(leased_addresses)
    earlier, later = leased_addresses.c.leased_until, statement.excluded.leased_until
    tx.execute(
        statement.on_conflict_do_update(
            index_elements=["repository_id", "address"],
            set_={"leased_until": sa.case((later > earlier, later), else_=earlier)},
        ),
        [
            {
                "repository_id": repository_id,
                "address": address,
                "leased_at": now,
                "leased_until": until,
            }
            # Sorted, so that two transactions that lease the same addresses do not deadlock.
            for address in sorted(set(addresses))
        ],
    )


def is_unleased(now: datetime) -> sa.ColumnElement[bool]:
    """Returns the SQL condition for a row of `released` whose address is not leased at `now`."""
    return ~sa.exists().where(
        leased_addresses.c.repository_id == released.c.repository_id,
        leased_addresses.c.address == released.c.address,
        leased_addresses.c.leased_until > now,
    )
