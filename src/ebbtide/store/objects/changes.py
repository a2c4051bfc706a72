"""Changes of a branch's objects that write no new bytes: deletes, moves, shared copies and new
metadata.

A delete hides a committed path, and drops a staged change. For the others, the row of a staged
object changes in one transaction. The bytes of a committed object are copied if it moves: its
address belongs to a commit, and a branch must not release it. The branch can change before the
transaction, which therefore locks it, and compares it with what was read. Not for: copies with
bytes of their own (`objects`), or resets (`commits.commits`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from ebbtide.errors import Conflict, InvalidInput, NotFound
from ebbtide.store.content.entries import Entry, checksums_of, is_external
from ebbtide.store.content.trees import find_entry
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import CommitRecord, require_commit, require_intact_commits
from ebbtide.store.database.engine import Transaction
from ebbtide.store.names import check_metadata, check_path
from ebbtide.store.objects.views import FoundEntry
from ebbtide.store.purge_records import require_not_purged
from ebbtide.store.refs.protection import require_writable
from ebbtide.store.refs.ref_rows import BRANCH_ATTEMPTS_MAX, BranchRow, require_branch
from ebbtide.store.staging.pending_writes import Writes, publish_writes
from ebbtide.store.staging.released import COMMITTED
from ebbtide.store.staging.staged_rows import (
    Change,
    StagedRow,
    delete_staged,
    find_staged,
    record_copy,
    share_row,
    take_row,
    write_staged,
)
from ebbtide.store.staging.uploads import Condition, NewObject, visible_entry, write_object
from ebbtide.text import shown


class Changed(Exception):
    """The branch has changed since it was read. The caller reads it again."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The entries of a branch at a path: in its commit, and staged by token."""

    branch: BranchRow
    commit: CommitRecord
    committed: Entry | None
    staged: Mapping[str, Change]

    @property
    def is_staged(self) -> bool:
        """Whether the visible entry at the path is staged."""
        return newest(self.branch, self.staged) is not None

    @property
    def shows_below(self) -> bool:
        """Whether an entry is visible without the staging token's row at the path."""
        for token in self.branch.sealed_tokens:
            if token in self.staged:
                return self.staged[token] is not None
        return self.committed is not None


def newest(branch: BranchRow, staged: Mapping[str, Change]) -> str | None:
    """Returns the newest of the branch's tokens that have a change, or None."""
    return next((token for token in branch.tokens if token in staged), None)


def look(context: RepositoryContext, branch_name: str, path: str) -> Seen:
    """Reads the entries of a branch at a path.

    Raises NotFound `branch_not_found`, `object_not_found`; Conflict `write_protected`.
    """
    with context.metadata.snapshot() as tx:
        branch = require_writable(tx, context.repository_id, branch_name)
        commit = require_commit(tx, context.repository_id, branch.commit_id)
        staged = staged_at(tx, context, branch, path)
    with context.reading(commit):
        tree = context.tree_of(commit)
        committed = find_entry(context.storage, tree, path, read=context.cache.range)
    seen = Seen(branch, commit, committed, staged)
    token = newest(branch, staged)
    if (committed if token is None else staged[token]) is None:
        raise NotFound("object_not_found", f"there is no object {shown(path)} on {branch_name!r}")
    return seen


def staged_at(
    tx: Transaction, context: RepositoryContext, branch: BranchRow, path: str
) -> dict[str, Change]:
    """Returns the changes that are staged at a path, by token."""
    found = find_staged(tx, context.repository_id, branch.tokens, [path])
    return {token: found[token][path] for token in branch.tokens if path in found[token]}


def locked(tx: Transaction, context: RepositoryContext, seen: Seen) -> BranchRow:
    """Locks the branch exclusively, and returns it. Raises Changed.

    The repository's row is locked before anything is read. A reading or a fence therefore sees the
    old path, or finds the record of a move.
    """
    tx.lock_repository(context.repository_id)
    branch = require_writable(tx, context.repository_id, seen.branch.name, lock="exclusive")
    if not same_base(seen.branch, branch):
        raise Changed
    return branch


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


def replace_metadata(
    context: RepositoryContext, branch_name: str, path: str, metadata: Mapping[str, str]
) -> Entry:
    """Replaces the metadata of an object, as `Objects.set_metadata` describes.

    The entry with the new metadata has the address of the old one. If a commit has that address,
    the new row is marked as shared with it: a row that is dropped then does not release the
    address.
    """
    check_metadata(metadata)
    context.touch_owner()
    for _ in range(BRANCH_ATTEMPTS_MAX):
        seen = look(context, branch_name, path)
        with suppress(Changed), context.metadata.transaction() as tx:
            return _stage(tx, context, seen, path, metadata)
    raise Conflict("branch_moved", f"branch {branch_name!r} moves too often: try again")


def _stage(
    tx: Transaction,
    context: RepositoryContext,
    seen: Seen,
    path: str,
    metadata: Mapping[str, str],
) -> Entry:
    repository_id = context.repository_id
    branch = locked(tx, context, seen)
    row = _visible(tx, context, branch, seen, path)
    require_not_purged(tx, repository_id, [row.entry.address])
    # The bytes stay the same, and so do their checksums.
    entry = replace(row.entry, metadata={**metadata, **checksums_of(row.entry.metadata)})
    _stage_shared(tx, context, branch, entry, row)
    return entry


def _stage_shared(
    tx: Transaction, context: RepositoryContext, branch: BranchRow, entry: Entry, source: StagedRow
) -> None:
    """Stages an entry with the address of `source`."""
    write_staged(
        tx,
        context.repository_id,
        branch.staging_token,
        {entry.path: entry},
        lease_ttl=context.settings.lease_ttl,
        sharing=source.sharing,
    )
    if not is_external(entry.address):
        # A reading of the staged entries may have passed the new row's place already.
        record_copy(tx, context.repository_id, entry.address)


def _visible(
    tx: Transaction, context: RepositoryContext, branch: BranchRow, seen: Seen, path: str
) -> StagedRow:
    """Returns the visible entry, whose address the caller gives to a new row. The row of the
    staging token is taken away, without releasing its address.

    Raises Changed; Gone `commit_expired` if the branch's commit has expired.
    """
    repository_id = context.repository_id
    token = newest(branch, staged_at(tx, context, branch, path))
    if token is not None:
        # A commit may be reading a sealed row, so that the row stays, and shares its address.
        take = take_row if token == branch.staging_token else share_row
        row = take(tx, repository_id, token, path)
        if row is None:
            raise Changed
        return row
    if seen.committed is None or seen.is_staged:
        raise Changed
    # The branch still has this commit. While its commit is intact, so are the bytes.
    require_intact_commits(tx, repository_id, [seen.commit.commit_id])
    return StagedRow(seen.committed, COMMITTED)


def share_staged(
    context: RepositoryContext, branch: str, destination_path: str, found: Entry
) -> Entry | None:
    """Stages an object that was found staged on the branch at `destination_path` too.

    Returns None if it is not staged at its path any more, or with other metadata. Raises NotFound
    `branch_not_found`, Gone `purged`.
    """
    repository_id, source_path = context.repository_id, found.path
    with context.metadata.transaction() as tx:
        # Locked before the source is read. The source may be dropped before this transaction ends,
        # and a reading or a fence in between must find the copy.
        tx.lock_repository(repository_id)
        # Exclusive: two copies in opposite directions would wait for each other's rows.
        row = require_writable(tx, repository_id, branch, lock="exclusive")
        staged = find_staged(tx, repository_id, row.tokens, [source_path])
        token = next((token for token in row.tokens if source_path in staged[token]), None)
        # The caller may have checked a condition on what it found. Nothing else may be copied.
        if token is None or staged[token][source_path] != found:
            return None
        source = share_row(tx, repository_id, token, source_path)
        if source is None:
            return None
        require_not_purged(tx, repository_id, [source.entry.address])
        copy = replace(source.entry, path=destination_path, mtime=tx.now())
        _stage_shared(tx, context, row, copy, source)
    return copy


BATCH_PATHS: Final = 1000


def delete_paths(context: RepositoryContext, branch_name: str, paths: Iterable[str]) -> list[str]:
    """Deletes paths, a thousand in each transaction. Returns the paths that did not exist, sorted.

    Raises NotFound `branch_not_found`, Conflict `branch_moved` if commits keep moving the branch.
    """
    context.touch_owner()
    ordered = sorted(set(paths))
    missing: list[str] = []
    for start in range(0, len(ordered), BATCH_PATHS):
        missing += _delete_batch(context, branch_name, ordered[start : start + BATCH_PATHS])
    return missing


def _delete_batch(context: RepositoryContext, branch_name: str, paths: Sequence[str]) -> list[str]:
    for _ in range(BRANCH_ATTEMPTS_MAX):
        with context.metadata.snapshot() as tx:
            before = require_branch(tx, context.repository_id, branch_name)
            commit = require_commit(tx, context.repository_id, before.commit_id)
        tree = context.tree_of(commit)
        # The tree is read outside the transaction that writes. If the branch moves in between, the
        # result is outdated, and the next attempt reads again.
        committed = {
            path
            for path in paths
            if find_entry(context.storage, tree, path, read=context.cache.range) is not None
        }
        with context.metadata.transaction() as tx:
            branch = require_writable(tx, context.repository_id, branch_name, lock="share")
            if same_base(before, branch):
                return _delete_in(tx, context, branch, paths, committed)
    raise Conflict("branch_moved", f"branch {branch_name!r} moves too often: try again")


def delete_path_if(
    context: RepositoryContext, branch_name: str, path: str, only_if: Condition
) -> bool:
    """Deletes the object at a path if it meets a condition. Returns false if there is none.

    Raises as `only_if` does, NotFound `branch_not_found`, Conflict `branch_moved`.
    """
    context.touch_owner()
    for _ in range(BRANCH_ATTEMPTS_MAX):
        with context.metadata.snapshot() as tx:
            before = require_branch(tx, context.repository_id, branch_name)
            commit = require_commit(tx, context.repository_id, before.commit_id)
        tree = context.tree_of(commit)
        committed = find_entry(context.storage, tree, path, read=context.cache.range)
        with context.metadata.transaction() as tx:
            # Other writers wait, so that the object which is checked is the one that is deleted.
            branch = require_writable(tx, context.repository_id, branch_name, lock="exclusive")
            if not same_base(before, branch):
                continue
            staged = find_staged(tx, context.repository_id, branch.tokens, [path])
            visible = visible_entry(branch, staged, path, committed)
            if visible is None:
                return False
            only_if.check(path, visible)
            _delete_in(tx, context, branch, [path], set() if committed is None else {path})
            return True
    raise Conflict("branch_moved", f"branch {branch_name!r} moves too often: try again")


def same_base(before: BranchRow, now: BranchRow) -> bool:
    """Whether a branch has the same commit and sealed tokens as before."""
    return (before.branch_id, before.commit_id, before.sealed_tokens) == (
        now.branch_id,
        now.commit_id,
        now.sealed_tokens,
    )


def _delete_in(
    tx: Transaction,
    context: RepositoryContext,
    branch: BranchRow,
    paths: Sequence[str],
    committed: set[str],
) -> list[str]:
    repository_id, lease_ttl = context.repository_id, context.settings.lease_ttl
    staged = find_staged(tx, repository_id, branch.tokens, paths)
    missing: list[str] = []
    hidden: list[str] = []
    dropped: list[str] = []
    for path in paths:
        # A path is read from the staging token first, then from the sealed tokens, then from the
        # commit. A new commit may publish the sealed tokens at any moment.
        below = path in committed
        for token in reversed(branch.sealed_tokens):
            if path in staged[token]:
                below = staged[token][path] is not None
        on_top = staged[branch.staging_token]
        is_visible = on_top[path] is not None if path in on_top else below
        chosen = (hidden if below else dropped) if is_visible else missing
        chosen.append(path)
    token = branch.staging_token
    write_staged(tx, repository_id, token, dict.fromkeys(hidden), lease_ttl=lease_ttl)
    delete_staged(tx, repository_id, [token], dropped, lease_ttl=lease_ttl)
    return missing
