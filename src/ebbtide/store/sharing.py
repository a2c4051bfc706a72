"""Copies within a branch of what is staged there: a second path for the same bytes."""

from __future__ import annotations

from dataclasses import replace

from ebbtide.store.content.entries import Entry, is_external
from ebbtide.store.context import RepositoryContext
from ebbtide.store.metadata.branches import require_branch
from ebbtide.store.metadata.copies import record_copy
from ebbtide.store.metadata.staged import find_staged, write_staged
from ebbtide.store.purged import require_not_purged


def share_staged(
    context: RepositoryContext, branch: str, destination_path: str, source_path: str
) -> Entry | None:
    """Stage what is staged at one path of a branch at another path too; None when nothing is.

    Raises NotFound `branch_not_found`, Gone `purged`.
    """
    with context.metadata.transaction() as tx:
        # Before the source is looked at: it may be dropped before this transaction ends, and a
        # reading or a fence in between must find the copy.
        tx.lock_repository(context.repository_id)
        row = require_branch(tx, context.repository_id, branch, lock="share")
        staged = find_staged(tx, context.repository_id, row.tokens, [source_path])
        source = next(
            (staged[token][source_path] for token in row.tokens if source_path in staged[token]),
            None,
        )
        if source is None:
            return None
        require_not_purged(tx, context.repository_id, [source.address])
        copy = replace(source, path=destination_path, mtime=tx.now())
        write_staged(tx, context.repository_id, row.staging_token, {destination_path: copy})
        if not is_external(copy.address):
            record_copy(tx, context.repository_id, copy.address)
    return copy
