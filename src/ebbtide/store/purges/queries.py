"""Queries: purges, the addresses that they purged, and the keys that sign their records.

Every new reference to an existing address is checked here. Not for: purging (`ebbtide.purge`), or
other references to an address (`collecting.references`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.errors import Gone
from ebbtide.store.database.conditions import in_batches
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.schema import purge_keys, purged, purges

CLOSED: Final = ("deleting", "incomplete")
"""The states of a purge whose addresses are closed, but whose files may still exist."""

# Built once: many transactions run these statements, and building them takes longer than running
# them.
_ANY_PURGED: Final = (
    sa.select(purged.c.address)
    .where(purged.c.repository_id == sa.bindparam("repository_id"))
    .limit(1)
)
_PURGED: Final = sa.select(purged.c.address, purged.c.purge_id).where(
    purged.c.repository_id == sa.bindparam("repository_id"),
    purged.c.address.in_(sa.bindparam("addresses", expanding=True)),
)


def find_purged(tx: Transaction, repository_id: str, addresses: Iterable[str]) -> dict[str, str]:
    """Returns the purged ones among `addresses`, each with the id of its purge.

    `addresses` is read in batches, and not at all if the repository has no purged address.
    """
    if tx.execute(_ANY_PURGED, {"repository_id": repository_id}).first() is None:
        return {}
    found: dict[str, str] = {}
    for batch in in_batches(addresses):
        rows = tx.execute(_PURGED, {"repository_id": repository_id, "addresses": batch})
        found.update((row.address, row.purge_id) for row in rows)
    return found


def insert_purged(
    tx: Transaction, repository_id: str, purge_id: str, addresses: Iterable[str]
) -> None:
    """Records purged addresses. An address that an earlier purge recorded keeps the id of that
    purge."""
    now = tx.now()
    for batch in in_batches(addresses):
        known = find_purged(tx, repository_id, batch)
        rows = [
            {
                "repository_id": repository_id,
                "address": address,
                "purge_id": purge_id,
                "purged_at": now,
            }
            for address in batch
            if address not in known
        ]
        if rows:
            tx.execute(sa.insert(purged), rows)


def count_purged(tx: Transaction, repository_id: str, purge_id: str) -> int:
    """Returns the number of addresses that a purge recorded."""
    count: int = tx.execute(
        sa.select(sa.func.count()).where(
            purged.c.repository_id == repository_id, purged.c.purge_id == purge_id
        )
    ).scalar_one()
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeRow:
    """One purge as it is stored. `request` and `error` are JSON."""

    purge_id: str
    repository_id: str
    repository_name: str
    state: str
    request: dict[str, Any]
    record_url: str
    started_at: datetime
    plan_checksum: str | None = None
    record_checksum: str | None = None
    error: dict[str, str] | None = None
    closed_at: datetime | None = None
    finished_at: datetime | None = None


_COLUMNS: Final = tuple(purges.c[name] for name in PurgeRow.__dataclass_fields__)


def insert_purge(tx: Transaction, row: PurgeRow) -> None:
    """Records a purge."""
    tx.execute(sa.insert(purges).values(**asdict(row)))


def update_purge(
    tx: Transaction,
    purge_id: str,
    **values: Any,  # values of the columns' types
) -> None:
    """Changes columns of a purge."""
    tx.execute(sa.update(purges).where(purges.c.purge_id == purge_id).values(**values))


def find_purge(tx: Transaction, purge_id: str) -> PurgeRow | None:
    """Returns the purge with this id, or None."""
    row = tx.execute(sa.select(*_COLUMNS).where(purges.c.purge_id == purge_id)).one_or_none()
    return None if row is None else PurgeRow(**row._mapping)


def list_purges(tx: Transaction, repository_name: str) -> list[PurgeRow]:
    """Returns the purges of all repositories that had this name, the newest first."""
    rows = tx.execute(
        sa.select(*_COLUMNS)
        .where(purges.c.repository_name == repository_name)
        .order_by(purges.c.purge_id)
    )
    return [PurgeRow(**row._mapping) for row in rows]


def move_records(tx: Transaction, repository_id: str, place: Callable[[str], str]) -> None:
    """Sets the folder of each purge of a repository. `place` returns it for a purge's id."""
    query = sa.select(purges.c.purge_id).where(purges.c.repository_id == repository_id)
    for purge_id in list(tx.execute(query).scalars()):
        update_purge(tx, purge_id, record_url=place(purge_id))


@dataclass(frozen=True, slots=True)
class PurgeKeyRow:
    """A key that signs records: its public half in hexadecimal, its private half encrypted."""

    key_id: str
    public_key: str
    secret: bytes
    created_at: datetime


def insert_purge_key(tx: Transaction, row: PurgeKeyRow) -> None:
    """Records a key."""
    tx.execute(sa.insert(purge_keys).values(**asdict(row)))


def list_purge_keys(tx: Transaction) -> list[PurgeKeyRow]:
    """Returns all keys, the newest first."""
    rows = tx.execute(
        sa.select(purge_keys).order_by(purge_keys.c.created_at.desc(), purge_keys.c.key_id)
    )
    return [PurgeKeyRow(**row._mapping) for row in rows]


SHOWN_MAX: Final = 10


def require_not_purged(tx: Transaction, repository_id: str, addresses: Iterable[str]) -> None:
    """Raises Gone `purged` if any of the addresses was purged.

    `tx` is the transaction that makes the new references visible. It has held the repository's row,
    at least shared, since before it read the addresses. A purge takes the row exclusively, so that
    it sees the new references, or is seen here. `details` has `purge_ids` (sorted), `address_count`
    and `addresses` (sorted, the first ten).
    """
    found = find_purged(tx, repository_id, addresses)
    if not found:
        return
    ordered = sorted(found)
    purge_ids = sorted(set(found.values()))
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    raise Gone(
        "purged",
        f"{ordered[0]}{others} was deleted for good by an administrator (purge {purge_ids[0]}): "
        "nothing may refer to it any more",
        purge_ids=purge_ids,
        address_count=len(found),
        addresses=ordered[:SHOWN_MAX],
    )
