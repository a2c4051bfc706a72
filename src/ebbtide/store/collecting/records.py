"""Queries: the commits that a run closed or forgot, and restoring their records.

Not for: closing and forgetting (`ebbtide.store.collecting.roots`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import in_batches
from ebbtide.store.database.schema import commits

_DROPPED: Final = (
    commits.c.commit_id,
    commits.c.tree_id,
    commits.c.tree_checksum,
    commits.c.message,
    commits.c.committer,
    commits.c.metadata,
)
"""The id of a commit, and the columns that `forget` empties."""


def record_rows(
    tx: Transaction, repository_id: str, commit_ids: Collection[str]
) -> list[dict[str, Any]]:
    """Returns the columns that forgetting these commits would empty, one mapping for each commit.
    Contents of collections are left out."""
    found: list[dict[str, Any]] = []
    for batch in in_batches(sorted(commit_ids)):
        rows = tx.execute(
            sa.select(*_DROPPED).where(
                commits.c.repository_id == repository_id,
                commits.c.commit_id.in_(batch),
                commits.c.collection_id.is_(None),
                commits.c.tree_id.is_not(None),
            )
        )
        found += (dict(row._mapping) for row in rows)
    return found


def closed_rows(tx: Transaction, repository_id: str, *, run_id: str) -> list[dict[str, Any]]:
    """Returns `commit_id`, `tree_id` and `tree_checksum` of the commits that a run closed and whose
    records still exist."""
    rows = tx.execute(
        sa.select(commits.c.commit_id, commits.c.tree_id, commits.c.tree_checksum).where(
            commits.c.repository_id == repository_id,
            commits.c.tombstoned_by == run_id,
            commits.c.forgotten_by.is_(None),
        )
    )
    return [dict(row._mapping) for row in rows]


def put_back_records(
    tx: Transaction, repository_id: str, records: Sequence[Mapping[str, Any]], *, run_id: str
) -> None:
    """Restores the commit records that run `run_id` forgot. Stubs of other runs stay as they
    are."""
    for record in records:
        values = {name: value for name, value in record.items() if name != "commit_id"}
        tx.execute(
            sa.update(commits)
            .where(
                commits.c.repository_id == repository_id,
                commits.c.commit_id == record["commit_id"],
                commits.c.forgotten_by == run_id,
            )
            .values(**values, forgotten_by=None)
        )


def lease_commits(
    tx: Transaction, repository_id: str, commit_ids: Collection[str], *, until: datetime
) -> None:
    """Leases commits until `until`. A longer lease stays. Closed commits are left out."""
    later = sa.case(
        (commits.c.leased_until > until, commits.c.leased_until),
        else_=sa.literal(until, commits.c.leased_until.type),
    )
    for batch in in_batches(sorted(commit_ids)):
        tx.execute(
            sa.update(commits)
            .where(
                commits.c.repository_id == repository_id,
                commits.c.commit_id.in_(batch),
                commits.c.tombstoned_by.is_(None),
            )
            .values(leased_until=later)
        )
