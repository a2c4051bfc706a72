"""Which objects somebody needs, told from the definition: what commits have, and what is staged on
branches that are not gone.
"""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa

from ebbtide.store.content.layout import DATA_PREFIX
from ebbtide.store.content.trees import iterate_entries
from ebbtide.store.database.commit_rows import CommitRecord, find_commits
from ebbtide.store.database.schema import branches, commits, staged
from ebbtide.store.embedded import Store
from ebbtide.store.reclaimer import Reclaimer
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.lakes import every_file

ROUNDS: int = 3
"""After so many, with time between them, everything that ended has been deleted: what ends is
released in one, and deleted in the next."""


def committed(repository: Repository) -> set[str]:
    context = repository.context
    with context.metadata.snapshot() as tx:
        ids = tx.execute(sa.select(commits.c.commit_id)).scalars().all()
        records = find_commits(tx, context.repository_id, ids)
    return {address for record in records.values() for address in _entries(repository, record)}


def _entries(repository: Repository, record: CommitRecord) -> list[str]:
    context = repository.context
    return [entry.address for entry in iterate_entries(context.storage, context.tree_of(record))]


def staged_live(repository: Repository) -> set[str]:
    context = repository.context
    with context.metadata.snapshot() as tx:
        gone_before = tx.now() - context.trash_time
        ours = branches.c.repository_id == repository.info.repository_id
        rows = tx.execute(sa.select(branches).where(ours)).all()
        tokens = {
            token
            for row in rows
            if row.expires_at is None or row.expires_at > gone_before
            for token in (row.staging_token, *row.sealed_tokens)
        }
        found = tx.execute(sa.select(staged.c.token, staged.c.address)).all()
    return {row.address for row in found if row.token in tokens and row.address is not None}


def stored(repository: Repository) -> set[str]:
    return every_file(repository, DATA_PREFIX)


def check_settled(store: Store, repository: Repository, clock: ManualClock) -> None:
    """Nobody lacks anything; and once time has passed nothing is left that nobody needs."""
    assert (committed(repository) | staged_live(repository)) <= stored(repository)
    settings = store.settings
    for _ in range(ROUNDS):
        longest = max(settings.write_ttl, settings.upload_ttl, settings.trash_time)
        clock.advance(longest + settings.lease_ttl + timedelta(seconds=1))
        Reclaimer(store).once()
    assert committed(repository) | staged_live(repository) == stored(repository)
