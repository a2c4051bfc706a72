"""Queries: branches, and the earlier commits of refs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.refs import RefTable
from ebbtide.store.metadata.schema import branches, reflog


@dataclass(frozen=True, slots=True)
class BranchRow:
    """One branch as it is stored. `sealed_tokens` begins with the newest."""

    branch_id: str
    name: str
    commit_id: str
    staging_token: str
    sealed_tokens: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
    hidden: bool = False

    @property
    def ref_id(self) -> str:
        """The branch's id."""
        return self.branch_id

    @property
    def tokens(self) -> tuple[str, ...]:
        """All tokens under which entries of the branch are staged. A newer token hides older
        ones."""
        return (self.staging_token, *self.sealed_tokens)


BRANCHES: Final = RefTable("branch", branches, branches.c.branch_id, BranchRow)

find_branch = BRANCHES.find
require_branch = BRANCHES.require
insert_branch = BRANCHES.insert
update_branch = BRANCHES.update
list_branches = BRANCHES.all
is_branch_on = BRANCHES.is_on


def insert_reflog(
    tx: Transaction, repository_id: str, *, kind: str, name: str, commit_id: str
) -> None:
    """Records that a ref pointed at `commit_id` until now. Readers were promised its data for one
    lease."""
    tx.execute(
        sa.insert(reflog).values(
            repository_id=repository_id,
            kind=kind,
            name=name,
            commit_id=commit_id,
            left_at=tx.now(),
        )
    )
