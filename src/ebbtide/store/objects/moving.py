"""Moves within a branch: in one transaction, an object gets another path.

The row of a staged object gets the new path, and no bytes are copied. The bytes of a committed
object are copied: its address belongs to a commit, and a branch must not release it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from ebbtide.errors import Conflict, InvalidInput
from ebbtide.escaping import shown
from ebbtide.store.content.entries import Entry, is_external
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commits import require_intact_commits
from ebbtide.store.database.engine import Transaction
from ebbtide.store.names import check_path
from ebbtide.store.objects.places import Changed, Seen, locked, look, newest, staged_at
from ebbtide.store.objects.views import FoundEntry
from ebbtide.store.purges.queries import require_not_purged
from ebbtide.store.refs.queries import BRANCH_ATTEMPTS_MAX
from ebbtide.store.staging.copies import record_copy
from ebbtide.store.staging.pending_writes import Writes, publish_writes
from ebbtide.store.staging.queries import share_row, take_row, write_staged
from ebbtide.store.staging.uploads import NewObject, write_object

Stream = Callable[[FoundEntry], Iterator[bytes]]
"""Reads a whole object, and checks its bytes."""


def move_path(
    context: RepositoryContext, branch_name: str, source: str, destination: str, stream: Stream
) -> Entry:
    """Moves an object to another path of its branch, as `Objects.move` describes."""
    check_path(destination)
    if destination == source:
        raise InvalidInput("invalid_argument", f"{shown(source)} cannot be moved onto itself")
    context.touch_owner()
    for _ in range(BRANCH_ATTEMPTS_MAX):
        seen = look(context, branch_name, source)
        with suppress(Changed):
            if seen.is_staged:
                return _move_staged(context, seen, source, destination)
            return _move_committed(context, seen, source, destination, stream)
    raise Conflict("branch_moved", f"branch {branch_name!r} moves too often: try again")


def _move_staged(context: RepositoryContext, seen: Seen, source: str, destination: str) -> Entry:
    repository_id, lease_ttl = context.repository_id, context.settings.lease_ttl
    with context.metadata.transaction() as tx:
        branch = locked(tx, context, seen)
        token = newest(branch, staged_at(tx, context, branch, source))
        if token is None:
            raise Changed
        # A commit may be reading a sealed row, so that the row stays. The address gets a second
        # row, and both are marked as shared.
        is_sealed = token != branch.staging_token
        take = share_row if is_sealed else take_row
        row = take(tx, repository_id, token, source)
        if row is None:
            raise Changed
        require_not_purged(tx, repository_id, [row.entry.address])
        if is_sealed or seen.shows_below:
            write_staged(
                tx, repository_id, branch.staging_token, {source: None}, lease_ttl=lease_ttl
            )
        moved = replace(row.entry, path=destination)
        write_staged(
            tx,
            repository_id,
            branch.staging_token,
            {destination: moved},
            lease_ttl=lease_ttl,
            sharing=row.sharing,
        )
        if not is_external(moved.address):
            record_copy(tx, repository_id, moved.address)
    return moved


def _move_committed(
    context: RepositoryContext, seen: Seen, source: str, destination: str, stream: Stream
) -> Entry:
    assert seen.committed is not None  # checked by `_look`
    seen.commit.require_intact()
    if is_external(seen.committed.address):
        # Nobody deletes an object outside the storage root, so that its bytes need not be copied.
        moved = replace(seen.committed, path=destination)
        with context.metadata.transaction() as tx:
            _stage_moved(tx, context, seen, source, moved)
        return moved
    writes = Writes(context)
    with context.metadata.transaction() as tx:
        now = tx.now()
        (address,) = context.slices.new_addresses(1, now=now)
        writes.register_in(tx, [address])
    with writes.abandoning([address]):
        entry = seen.committed
        data = stream(FoundEntry(entry, seen.commit))
        new = NewObject(destination, data, entry.content_type, entry.metadata)
        moved = replace(write_object(context, new, address, now), mtime=entry.mtime)
        with context.metadata.transaction() as tx:
            _stage_moved(tx, context, seen, source, moved)
            publish_writes(tx, context.repository_id, [address])
    return moved


def _stage_moved(
    tx: Transaction, context: RepositoryContext, seen: Seen, source: str, moved: Entry
) -> None:
    """Stages the entry at its new path, and hides the committed one at the old path."""
    branch = locked(tx, context, seen)
    require_intact_commits(tx, context.repository_id, [seen.commit.commit_id])
    if staged_at(tx, context, branch, source):
        raise Changed
    if seen.committed is not None:
        require_not_purged(tx, context.repository_id, [seen.committed.address])
    write_staged(
        tx,
        context.repository_id,
        branch.staging_token,
        {source: None, moved.path: moved},
        lease_ttl=context.settings.lease_ttl,
    )
