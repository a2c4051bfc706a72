"""Queries: branches, and what refs pointed at before."""

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
    """One branch as it is stored. `sealed_tokens` has the newest first."""

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
        """Every token that holds staged entries of the branch; a newer one hides older ones."""
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
    """Remember that a ref pointed at `commit_id` until now: whoever read it there was promised
    its data for a lease."""
    tx.execute(
        sa.insert(reflog).values(
            repository_id=repository_id,
            kind=kind,
            name=name,
            commit_id=commit_id,
            left_at=tx.now(),
        )
    )
