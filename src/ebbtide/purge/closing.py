"""Between the check and the delete: one transaction looks again, and closes the addresses for good.

It holds the repository's row exclusively. Whoever makes a reference holds it shared and asks
whether an address was purged, so that each either is seen here or sees this.
"""

from __future__ import annotations

from typing import Final

from ebbtide.ids import new_id
from ebbtide.purge.references import Reference, Search, intact_commits, trees_of
from ebbtide.store.leases import Lease
from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.purges import insert_purged, update_purge
from ebbtide.store.metadata.references import drop_staged

ATTEMPTS: Final = 5
UNSEEN_MAX: Final = 16
"""So many trees that came meanwhile are read while nobody else can do anything; more are read
before it is tried again, as long as there are attempts."""


def find_others(search: Search) -> list[Reference]:
    """Everything in the way of a purge now. What comes meanwhile is found by `close`."""
    metadata, repository_id = search.context.metadata, search.context.repository_id
    with metadata.snapshot() as tx:
        commits = intact_commits(tx, repository_id)
    search.scan.look_at(trees_of(commits))
    with metadata.snapshot() as tx:
        known = [c for c in intact_commits(tx, repository_id) if search.scan.knows(c.tree_id)]
        return search.others(tx, known)


def close(search: Search, lease: Lease, purge_id: str) -> list[Reference]:
    """Close the addresses, and drop the staged entries that were named; or, if anything is in the
    way, change nothing and say what.

    Raises Refused `lease_lost`, and where a tree cannot be read.
    """
    metadata, repository_id = search.context.metadata, search.context.repository_id
    for attempt in range(1, ATTEMPTS + 1):
        with metadata.snapshot() as tx:
            commits = intact_commits(tx, repository_id)
        search.scan.look_at(trees_of(commits))
        with metadata.transaction() as tx:
            tx.lock_repository(repository_id, "exclusive")
            lease.check(tx)
            commits = intact_commits(tx, repository_id)
            unseen = search.scan.unseen(trees_of(commits))
            if len(unseen) > UNSEEN_MAX and attempt < ATTEMPTS:
                continue
            search.scan.look_at(unseen)
            found = search.others(tx, commits)
            if not found:
                _close(tx, search, purge_id)
            return found
    raise AssertionError("the last attempt ends in one way or the other")


def _close(tx: Transaction, search: Search, purge_id: str) -> None:
    repository_id = search.context.repository_id
    insert_purged(tx, repository_id, purge_id, search.addresses)
    drop_staged(tx, repository_id, search.named.staged, oldest_token=new_id())
    update_purge(tx, purge_id, state="deleting", closed_at=tx.now())
