"""Copies of staged objects within a branch: a second path for the same bytes.

Not for: copies with bytes of their own (`objects`).
"""

from __future__ import annotations

from dataclasses import replace

from ebbtide.store.content.entries import Entry, is_external
from ebbtide.store.context import RepositoryContext
from ebbtide.store.purges.queries import require_not_purged
from ebbtide.store.refs.protection import require_writable
from ebbtide.store.staging.copies import record_copy
from ebbtide.store.staging.queries import find_staged, share_row, write_staged


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
        write_staged(
            tx,
            repository_id,
            row.staging_token,
            {destination_path: copy},
            lease_ttl=context.settings.lease_ttl,
            sharing=source.sharing,
        )
        if not is_external(copy.address):
            record_copy(tx, repository_id, copy.address)
    return copy
