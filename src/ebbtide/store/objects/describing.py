"""New metadata for an object of a branch, without new bytes.

The entry with the new metadata has the address of the old one. If a commit has that address, the
new row is marked as shared with it: a row that is dropped then does not release the address.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from ebbtide.errors import Conflict
from ebbtide.store.content.entries import Entry, is_external
from ebbtide.store.content.reserved import checksums_of
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commits import require_intact_commits
from ebbtide.store.database.engine import Transaction
from ebbtide.store.names import check_metadata
from ebbtide.store.objects.places import Changed, Seen, locked, look, newest, staged_at
from ebbtide.store.purges.queries import require_not_purged
from ebbtide.store.refs.queries import BRANCH_ATTEMPTS_MAX, BranchRow
from ebbtide.store.staging.copies import record_copy
from ebbtide.store.staging.queries import StagedRow, share_row, take_row, write_staged
from ebbtide.store.staging.released import COMMITTED


def replace_metadata(
    context: RepositoryContext, branch_name: str, path: str, metadata: Mapping[str, str]
) -> Entry:
    """Replaces the metadata of an object, as `Objects.set_metadata` describes."""
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
    write_staged(
        tx,
        repository_id,
        branch.staging_token,
        {path: entry},
        lease_ttl=context.settings.lease_ttl,
        sharing=row.sharing,
    )
    if not is_external(entry.address):
        # A reading of the staged entries may have passed the new row's place already.
        record_copy(tx, repository_id, entry.address)
    return entry


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
