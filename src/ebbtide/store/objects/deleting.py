"""Deleting paths on a branch: a committed path is hidden, and a staged change is dropped.

Not for: resets (`resetting`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ebbtide.errors import Conflict
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.trees import find_entry
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commits import require_commit
from ebbtide.store.database.engine import Transaction
from ebbtide.store.refs.protection import require_writable
from ebbtide.store.refs.queries import BRANCH_ATTEMPTS_MAX, BranchRow, require_branch
from ebbtide.store.staging.queries import delete_staged, find_staged, write_staged
from ebbtide.store.staging.uploads import Condition

BATCH_PATHS: Final = 1000


def delete_paths(context: RepositoryContext, branch_name: str, paths: Iterable[str]) -> list[str]:
    """Deletes paths, a thousand in each transaction. Returns the paths that did not exist, sorted.

    Raises NotFound `branch_not_found`, Conflict `branch_moved` if commits keep moving the branch.
    """
    context.touch_owner()
    ordered = sorted(set(paths))
    missing: list[str] = []
    for start in range(0, len(ordered), BATCH_PATHS):
        missing += _delete_batch(context, branch_name, ordered[start : start + BATCH_PATHS])
    return missing


def _delete_batch(context: RepositoryContext, branch_name: str, paths: Sequence[str]) -> list[str]:
    for _ in range(BRANCH_ATTEMPTS_MAX):
        with context.metadata.snapshot() as tx:
            before = require_branch(tx, context.repository_id, branch_name)
            commit = require_commit(tx, context.repository_id, before.commit_id)
        tree = context.tree_of(commit)
        # The tree is read outside the transaction that writes. If the branch moves in between, the
        # result is outdated, and the next attempt reads again.
        committed = {
            path
            for path in paths
            if find_entry(context.storage, tree, path, read=context.cache.range) is not None
        }
        with context.metadata.transaction() as tx:
            branch = require_writable(tx, context.repository_id, branch_name, lock="share")
            if same_base(before, branch):
                return _delete_in(tx, context, branch, paths, committed)
    raise Conflict("branch_moved", f"branch {branch_name!r} moves too often: try again")


def delete_path_if(
    context: RepositoryContext, branch_name: str, path: str, only_if: Condition
) -> bool:
    """Deletes the object at a path if it meets a condition. Returns false if there is none.

    Raises as `only_if` does, NotFound `branch_not_found`, Conflict `branch_moved`.
    """
    context.touch_owner()
    for _ in range(BRANCH_ATTEMPTS_MAX):
        with context.metadata.snapshot() as tx:
            before = require_branch(tx, context.repository_id, branch_name)
            commit = require_commit(tx, context.repository_id, before.commit_id)
        tree = context.tree_of(commit)
        committed = find_entry(context.storage, tree, path, read=context.cache.range)
        with context.metadata.transaction() as tx:
            # Other writers wait, so that the object which is checked is the one that is deleted.
            branch = require_writable(tx, context.repository_id, branch_name, lock="exclusive")
            if not same_base(before, branch):
                continue
            visible = _visible(tx, context, branch, path, committed)
            if visible is None:
                return False
            only_if.check(path, visible)
            _delete_in(tx, context, branch, [path], set() if committed is None else {path})
            return True
    raise Conflict("branch_moved", f"branch {branch_name!r} moves too often: try again")


def _visible(
    tx: Transaction,
    context: RepositoryContext,
    branch: BranchRow,
    path: str,
    committed: Entry | None,
) -> Entry | None:
    """Returns the entry that the branch shows at a path."""
    staged = find_staged(tx, context.repository_id, branch.tokens, [path])
    for token in branch.tokens:
        if path in staged[token]:
            return staged[token][path]
    return committed


def same_base(before: BranchRow, now: BranchRow) -> bool:
    """Whether a branch has the same commit and sealed tokens as before."""
    return (before.branch_id, before.commit_id, before.sealed_tokens) == (
        now.branch_id,
        now.commit_id,
        now.sealed_tokens,
    )


def _delete_in(
    tx: Transaction,
    context: RepositoryContext,
    branch: BranchRow,
    paths: Sequence[str],
    committed: set[str],
) -> list[str]:
    repository_id, lease_ttl = context.repository_id, context.settings.lease_ttl
    staged = find_staged(tx, repository_id, branch.tokens, paths)
    missing: list[str] = []
    hidden: list[str] = []
    dropped: list[str] = []
    for path in paths:
        # A path is read from the staging token first, then from the sealed tokens, then from the
        # commit. A new commit may publish the sealed tokens at any moment.
        below = path in committed
        for token in reversed(branch.sealed_tokens):
            if path in staged[token]:
                below = staged[token][path] is not None
        on_top = staged[branch.staging_token]
        is_visible = on_top[path] is not None if path in on_top else below
        chosen = (hidden if below else dropped) if is_visible else missing
        chosen.append(path)
    token = branch.staging_token
    write_staged(tx, repository_id, token, dict.fromkeys(hidden), lease_ttl=lease_ttl)
    delete_staged(tx, repository_id, [token], dropped, lease_ttl=lease_ttl)
    return missing
