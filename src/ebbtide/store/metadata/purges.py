"""Queries: the addresses that purges deleted for good."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import sqlalchemy as sa

from ebbtide.store.metadata.batches import in_batches
from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.schema import purged

# Made once: much that makes references runs them, and making them takes longer than running them.
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
    """Those of the addresses that were purged, with the id of the purge.

    Addresses are taken a bounded number at a time, and none are where nothing was ever purged.
    """
    if tx.execute(_ANY_PURGED, {"repository_id": repository_id}).first() is None:
        return {}
    found: dict[str, str] = {}
    for batch in in_batches(addresses):
        rows = tx.execute(_PURGED, {"repository_id": repository_id, "addresses": batch})
        found.update((row.address, row.purge_id) for row in rows)
    return found
