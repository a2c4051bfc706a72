"""What was purged stays away: asked by whoever refers to an address that is there already.

Not for: purging (`ebbtide.purge`), or whether any other reason lets an object go.
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

    `tx` is the transaction that makes the new references visible, and holds the repository's row,
    shared at least, since before it read what it refers to: a purge takes the row exclusively, so
    that it sees the new references, or is seen here. `details` has `purge_ids` (sorted),
    `address_count` and `addresses` (sorted, the first ten).
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
