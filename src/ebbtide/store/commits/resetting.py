"""Resets: staged changes are dropped. A hard reset also moves the branch to another commit.

A commit that is being made from dropped changes must not be published. A reset therefore changes
the sealed tokens of the branch, and publishing compares them with those that the commit began with.
"""

from __future__ import annotations

from ebbtide.errors import Conflict
from ebbtide.ids import new_id
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commits import CommitRecord
from ebbtide.store.database.engine import Transaction
from ebbtide.store.refs.protection import require_writable
from ebbtide.store.refs.queries import BranchRow, insert_reflog, update_branch
from ebbtide.store.refs.revisions import resolve
from ebbtide.store.staging.queries import delete_staged, delete_staged_prefix, has_staged
from ebbtide.store.staging.released import drop_tokens


def reset_all(context: RepositoryContext, branch_name: str) -> None:
    """Drops all staged changes of a branch, however many. The branch gets a new token.

    The rows under the old tokens are left to the reclaimer.
    """
    repository_id = context.repository_id
    with context.metadata.transaction() as tx:
        branch = require_writable(tx, repository_id, branch_name, act="reset", lock="exclusive")
        _drop_staged(tx, repository_id, branch)


def reset_to(
    context: RepositoryContext, branch_name: str, ref: str, *, force: bool
) -> CommitRecord:
    """Moves a branch to another commit, as `Commits.reset_to` describes."""
    repository_id = context.repository_id
    with context.changing() as tx:
        # The fence of a run waits for the lock of the repository, or has closed its commits before.
        # So a commit that is intact now stays intact: the fence finds the branch on it.
        branch = require_writable(tx, repository_id, branch_name, act="reset", lock="exclusive")
        target = resolve(tx, repository_id, ref).commit
        target.require_intact()
        if has_staged(tx, repository_id, branch.tokens):
            if not force:
                raise Conflict(
                    "branch_dirty",
                    f"branch {branch_name!r} has staged changes: commit or reset them first",
                )
            _drop_staged(tx, repository_id, branch)
        if target.commit_id != branch.commit_id:
            insert_reflog(
                tx, repository_id, kind="branch", name=branch.name, commit_id=branch.commit_id
            )
            update_branch(tx, repository_id, branch.branch_id, commit_id=target.commit_id)
    return target


def _drop_staged(tx: Transaction, repository_id: str, branch: BranchRow) -> None:
    """Gives a branch a new token, and drops the old ones. The caller has locked the branch."""
    update_branch(tx, repository_id, branch.branch_id, staging_token=new_id(), sealed_tokens=())
    drop_tokens(tx, repository_id, branch.tokens)


def reset_paths(
    context: RepositoryContext, branch_name: str, *, path: str | None = None, prefix: str = ""
) -> int:
    """Drops the staged changes at a path, or at all paths with a prefix. Returns their number."""
    repository_id, lease_ttl = context.repository_id, context.settings.lease_ttl
    with context.metadata.transaction() as tx:
        branch = require_writable(tx, repository_id, branch_name, act="reset", lock="exclusive")
        if branch.sealed_tokens:
            # An empty token at the end changes the list. The rows under the sealed tokens stay.
            update_branch(
                tx,
                repository_id,
                branch.branch_id,
                sealed_tokens=(*branch.sealed_tokens, new_id()),
            )
        if path is not None:
            return delete_staged(tx, repository_id, branch.tokens, [path], lease_ttl=lease_ttl)
        return delete_staged_prefix(tx, repository_id, branch.tokens, prefix, lease_ttl=lease_ttl)
