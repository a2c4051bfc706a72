"""Queries: leases of uncommitted addresses, for readers that go past this program.

A signed URL reads a staged object without asking the database. Until the lease ends, no run and no
reclaimer deletes the object, even if the branch drops it. Not for: leases of commits
(`database.commits`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import in_batches
from ebbtide.store.database.schema import leased_addresses, released, staged


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
    insert = postgresql.insert if tx.dialect_name == "postgresql" else sqlite.insert
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
