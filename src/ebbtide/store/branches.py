"""Branches: made, listed, trashed and brought back. Not for what is on them."""

from __future__ import annotations

import builtins
from dataclasses import dataclass, replace
from datetime import datetime

from ebbtide.errors import Conflict, InvalidInput, NotFound
from ebbtide.ids import new_id
from ebbtide.retention.lifecycle import LifecycleState, state_at
from ebbtide.store.context import RepositoryContext
from ebbtide.store.listing import check_amount
from ebbtide.store.metadata.branches import (
    BranchRow,
    find_branch,
    insert_branch,
    insert_reflog,
    list_branches,
    page_of_branches,
    require_branch,
    trashed_branches,
    update_branch,
)
from ebbtide.store.metadata.commits import require_intact_commits
from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.tags import find_tag
from ebbtide.store.names import check_ref_name, shown
from ebbtide.store.revisions import resolve


@dataclass(frozen=True, slots=True)
class Branch:
    """One branch as it was when it was looked at."""

    branch_id: str
    name: str
    commit_id: str
    created_at: datetime
    expires_at: datetime | None
    state: LifecycleState
    hidden: bool = False


class Branches:
    """The branches of one repository."""

    def __init__(self, context: RepositoryContext) -> None:
        self._context = context
        self._metadata = context.metadata
        self._repository_id = context.repository_id

    def create(self, name: str, source: str, *, hidden: bool = False) -> Branch:
        """Make a branch on the commit that `source` means; nothing staged comes along. A hidden
        one is left out of `page` unless asked for, and is like any other else.

        Raises InvalidInput `invalid_name`, Conflict `branch_exists` or `tag_exists`, NotFound,
        Gone `commit_expired`.
        """
        check_ref_name(name)
        with self._metadata.transaction() as tx:
            tx.lock_repository(self._repository_id, "exclusive")
            require_free_name(tx, self._repository_id, name)
            commit = resolve(tx, self._repository_id, source).commit
            commit.require_intact()
            row = BranchRow(
                branch_id=new_id(),
                name=name,
                commit_id=commit.commit_id,
                staging_token=new_id(),
                sealed_tokens=(),
                created_at=tx.now(),
                expires_at=None,
                hidden=hidden,
            )
            insert_branch(tx, self._repository_id, row)
            return self._branch(tx, row)

    def get(self, name: str, *, include_expired: bool = False) -> Branch:
        """The branch of that name; with `include_expired`, else the last of it in the trash.

        Raises NotFound `branch_not_found`.
        """
        with self._metadata.snapshot() as tx:
            row = find_branch(tx, self._repository_id, name)
            if row is None and include_expired:
                row = self._recoverable(tx, name)
            if row is None:
                row = require_branch(tx, self._repository_id, name)
            return self._branch(tx, row)

    def list(self, *, include_expired: bool = False) -> list[Branch]:
        """All branches by name; with `include_expired`, those in the trash too."""
        with self._metadata.snapshot() as tx:
            found = [self._branch(tx, row) for row in list_branches(tx, self._repository_id)]
        return [
            branch for branch in found if branch.state.is_visible(include_expired=include_expired)
        ]

    def page(
        self, *, prefix: str = "", after: str = "", amount: int = 1000, hidden: bool = False
    ) -> builtins.list[Branch]:
        """At most `amount` branches behind a name, by name; hidden ones if asked for.

        Raises InvalidInput `invalid_argument`.
        """
        check_amount(amount)
        with self._metadata.snapshot() as tx:
            rows = page_of_branches(
                tx, self._repository_id, prefix=prefix, after=after, amount=amount, hidden=hidden
            )
            return [self._branch(tx, row) for row in rows]

    def delete(self, name: str) -> Branch:
        """Put a branch in the trash: its name is free, and all it holds stays for `trash_time`.

        Raises NotFound `branch_not_found`, Conflict `branch_protected` for the default branch.
        """
        with self._metadata.transaction() as tx:
            return self._expire(tx, name, tx.now())

    def set_expiry(self, name: str, expires_at: datetime | None) -> Branch:
        """Say when a branch will go to the trash by itself; None is never, a past time is now.

        Raises NotFound `branch_not_found`, Conflict `branch_protected`, InvalidInput
        `invalid_date` for a time without a zone.
        """
        if expires_at is not None and expires_at.tzinfo is None:
            raise InvalidInput("invalid_date", f"{expires_at} has no time zone: give one")
        with self._metadata.transaction() as tx:
            if expires_at is not None:
                return self._expire(tx, name, max(expires_at, tx.now()))
            tx.lock_repository(self._repository_id)
            row = require_branch(tx, self._repository_id, name, lock="exclusive")
            return self._update_expiry(tx, row, None)

    def restore(self, name: str) -> Branch:
        """Bring the branch of that name that was last trashed back, with all that was staged.

        Raises NotFound `branch_not_found`, Conflict `branch_exists` or `tag_exists` when the
        name was taken since.
        """
        with self._metadata.transaction() as tx:
            tx.lock_repository(self._repository_id, "exclusive")
            require_free_name(tx, self._repository_id, name)
            row = self._recoverable(tx, name)
            if row is None:
                raise NotFound("branch_not_found", f"there is no branch {shown(name)} to restore")
            require_intact_commits(tx, self._repository_id, [row.commit_id])
            return self._update_expiry(tx, row, None)

    def _expire(self, tx: Transaction, name: str, expires_at: datetime) -> Branch:
        if name == self._context.info.default_branch:
            raise Conflict(
                "branch_protected", f"{shown(name)} is the default branch: it cannot be deleted"
            )
        tx.lock_repository(self._repository_id)
        row = require_branch(tx, self._repository_id, name, lock="exclusive")
        if expires_at <= tx.now():
            insert_reflog(
                tx, self._repository_id, kind="branch", name=name, commit_id=row.commit_id
            )
        return self._update_expiry(tx, row, expires_at)

    def _update_expiry(
        self, tx: Transaction, row: BranchRow, expires_at: datetime | None
    ) -> Branch:
        update_branch(tx, self._repository_id, row.branch_id, expires_at=expires_at)
        return self._branch(tx, replace(row, expires_at=expires_at))

    def _recoverable(self, tx: Transaction, name: str) -> BranchRow | None:
        for row in trashed_branches(tx, self._repository_id, name):
            if self._branch(tx, row).state is LifecycleState.TRASHED:
                return row
        return None

    def _branch(self, tx: Transaction, row: BranchRow) -> Branch:
        state = state_at(row.expires_at, trash_time=self._context.trash_time, now=tx.now())
        return Branch(
            row.branch_id,
            row.name,
            row.commit_id,
            row.created_at,
            row.expires_at,
            state,
            row.hidden,
        )


def require_free_name(tx: Transaction, repository_id: str, name: str) -> None:
    """Raises Conflict `branch_exists` or `tag_exists`: branches and tags share their names, so
    that a name never means two commits. The repository must be locked exclusively."""
    if find_branch(tx, repository_id, name) is not None:
        raise Conflict("branch_exists", f"there is a branch {shown(name)} already")
    if find_tag(tx, repository_id, name) is not None:
        raise Conflict("tag_exists", f"there is a tag {shown(name)} already")
