"""The branches of a repository. `refs` has the operations that tags share.

Not for: the entries on a branch.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from datetime import datetime

from ebbtide.ids import new_id
from ebbtide.retention.lifecycle import LifecycleState, expiry_asked
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.schema import branches
from ebbtide.store.names import check_ref_name
from ebbtide.store.refs.queries import BRANCHES, BranchRow
from ebbtide.store.refs.refs import Refs, require_free_name
from ebbtide.store.refs.revisions import resolve
from ebbtide.store.repositories.lifecycle import ListFilter


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch as it was when it was read."""

    branch_id: str
    name: str
    commit_id: str
    created_at: datetime
    expires_at: datetime | None
    state: LifecycleState
    hidden: bool = False

    @property
    def ref_id(self) -> str:
        """The branch's id."""
        return self.branch_id


class Branches(Refs[BranchRow, Branch]):
    """The branches of one repository."""

    def __init__(self, context: RepositoryContext) -> None:
        super().__init__(context, BRANCHES)

    def create(
        self,
        name: str,
        source: str,
        *,
        hidden: bool = False,
        expires_at: datetime | None = None,
    ) -> Branch:
        """Makes a branch at the commit that `source` names, without staged changes.

        `page` leaves a hidden branch out by default. Otherwise it is like any other. At
        `expires_at` the branch moves to the trash. A past time means now.

        Raises InvalidInput `invalid_name`, `invalid_date`; Conflict `branch_exists` or
        `tag_exists`; NotFound; Gone `commit_expired`.
        """
        check_ref_name(name)
        with self._context.changing("exclusive") as tx:
            require_free_name(tx, self._repository_id, name)
            commit = resolve(tx, self._repository_id, source).commit
            commit.require_intact()
            now = tx.now()
            row = BranchRow(
                branch_id=new_id(),
                name=name,
                commit_id=commit.commit_id,
                staging_token=new_id(),
                sealed_tokens=(),
                created_at=now,
                expires_at=expiry_asked(expires_at, now=now),
                hidden=hidden,
            )
            self._table.insert(tx, self._repository_id, row)
            return self._look(tx, row)

    def page(
        self,
        *,
        prefix: str = "",
        after: str = "",
        amount: int = 1000,
        listed: ListFilter | None = None,
        hidden: bool = False,
    ) -> builtins.list[Branch]:
        """Returns a page of branches, as `Refs.page` does. `hidden` includes the hidden ones."""
        seen = () if hidden else (branches.c.hidden.is_(False),)
        return self._page(prefix, after, amount, listed or ListFilter(), *seen)

    def _found(self, row: BranchRow, state: LifecycleState) -> Branch:
        return Branch(
            row.branch_id,
            row.name,
            row.commit_id,
            row.created_at,
            row.expires_at,
            state,
            row.hidden,
        )
