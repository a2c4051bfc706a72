"""Closes the addresses of a purge: one transaction checks again, and records them as purged.

It holds the repository's row exclusively. A transaction that makes a reference holds the row
shared, and asks whether the address was purged. Therefore either this transaction sees the new
reference, or the other sees the purge.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from ebbtide.ids import new_id
from ebbtide.purge.references import Reference, ReferenceSearch, intact_commits, trees_of
from ebbtide.store.collecting.references import drop_staged
from ebbtide.store.database.engine import Transaction
from ebbtide.store.purges.queries import insert_purged, update_purge
from ebbtide.store.repositories.leases import Lease

ATTEMPTS: Final = 5
UNSEEN_MAX: Final = 16
"""The most new trees that are read while the repository is locked. If there are more, they are read
without the lock, and the transaction is tried again, up to the last of ATTEMPTS."""


def find_others(search: ReferenceSearch) -> list[Reference]:
    """Returns all references that prevent a purge now. `close` finds references that are made
    later."""
    metadata, repository_id = search.context.metadata, search.context.repository_id
    with metadata.snapshot() as tx:
        commits = intact_commits(tx, repository_id)
    search.scan.look_at(trees_of(commits))
    with metadata.snapshot() as tx:
        known = [c for c in intact_commits(tx, repository_id) if search.scan.knows(c.tree_id)]
        return search.others(tx, known)


def find_shared(search: ReferenceSearch) -> tuple[list[Reference], set[str]]:
    """Returns the references that `find_others` returns, and the addresses to which they refer.

    Raises Refused if a tree cannot be read.
    """
    metadata, repository_id = search.context.metadata, search.context.repository_id
    found = find_others(search)
    with metadata.snapshot() as tx:
        known = [c for c in intact_commits(tx, repository_id) if search.scan.knows(c.tree_id)]
        trees = search.shared_trees(tx, known)
        addresses = set(search.shared_rows(tx))
    for tree_id, paths in trees.items():
        addresses.update(search.scan.addresses_in(tree_id, but=paths))
    return found, addresses


def find_promise(search: ReferenceSearch, *, now: datetime) -> datetime | None:
    """Returns the time until which signatures and locators of the data can be valid, as
    `ReferenceSearch.promised_until` does. `find_others` has looked at the trees."""
    metadata, repository_id = search.context.metadata, search.context.repository_id
    with metadata.snapshot() as tx:
        known = [c for c in intact_commits(tx, repository_id) if search.scan.knows(c.tree_id)]
        return search.promised_until(tx, known, now=now)


def close(search: ReferenceSearch, lease: Lease, purge_id: str) -> list[Reference]:
    """Closes the addresses, and drops the named staged entries. If a reference prevents this,
    changes nothing, and returns all such references.

    Raises Refused `lease_lost`, and Refused if a tree cannot be read.
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


def _close(tx: Transaction, search: ReferenceSearch, purge_id: str) -> None:
    repository_id = search.context.repository_id
    insert_purged(tx, repository_id, purge_id, search.addresses)
    drop_staged(tx, repository_id, search.named.staged, oldest_token=new_id())
    update_purge(tx, purge_id, state="deleting", closed_at=tx.now())
