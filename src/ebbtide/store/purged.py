"""Refuses new references to purged addresses. Each reference to an existing address is checked.

Not for: purging (`ebbtide.purge`), or objects that are deleted for another reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ebbtide.errors import Gone
from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.purges import find_purged

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
