"""Merges and reverts: commits that are made from commits, not from what is staged."""

from __future__ import annotations

from typing import Final, get_args

from ebbtide.errors import Conflict, InvalidInput
from ebbtide.store.content.merging import Merged, Strategy, merge_trees
from ebbtide.store.context import RepositoryContext
from ebbtide.store.history import merge_base
from ebbtide.store.metadata.branches import BranchRow, require_branch
from ebbtide.store.metadata.commits import CommitRecord, require_commit, require_intact_commits
from ebbtide.store.metadata.engine import Transaction
from ebbtide.store.metadata.staged import has_staged
from ebbtide.store.names import shown
from ebbtide.store.publishing import CommitDetails, Publication, building, publish
from ebbtide.store.revisions import resolve

CONFLICTS_SHOWN_MAX: Final = 100


def merge_into(
    context: RepositoryContext,
    source_ref: str,
    branch_name: str,
    details: CommitDetails,
    strategy: Strategy | None,
) -> CommitRecord:
    """See `Commits.merge`."""
    details.check()
    if strategy is not None and strategy not in get_args(Strategy):
        raise InvalidInput(
            "invalid_argument",
            f"{shown(strategy)} is no strategy: write {' or '.join(get_args(Strategy))}",
        )
    context.touch_owner()
    with context.metadata.snapshot() as tx:
        branch, head = _clean_branch(tx, context.repository_id, branch_name)
        source = resolve(tx, context.repository_id, source_ref).commit
        source.require_intact()
        base = merge_base(tx, context.repository_id, head, source)
    if base is None or base.commit_id == source.commit_id:
        raise Conflict(
            "nothing_to_merge",
            f"branch {branch_name!r} has all of {shown(source_ref)} already"
            if base is not None
            else f"branch {branch_name!r} and {shown(source_ref)} have no commit in common",
        )
    # Of the base only the tree is needed, to compare with: it may be tombstoned. One that was
    # forgotten is Gone: with anything else in its place, what one side deleted would come back.
    with context.reading(base, source):
        merged = merge_trees(
            context.storage,
            context.tree_of(base),
            context.tree_of(source),
            context.tree_of(head),
            strategy=strategy,
            read=context.cache.range,
        )
        _refuse_conflicts(merged, f"{shown(source_ref)} and branch {branch_name!r}")
        with building(context, head, merged.changes) as tree:
            return publish(
                context,
                Publication(
                    branch=branch,
                    parent_ids=(head.commit_id, source.commit_id),
                    tree=tree,
                    details=details,
                ),
            )


def revert_on(
    context: RepositoryContext,
    branch_name: str,
    ref: str,
    details: CommitDetails,
    *,
    parent_number: int,
) -> CommitRecord:
    """See `Commits.revert`."""
    details.check()
    context.touch_owner()
    with context.metadata.snapshot() as tx:
        branch, head = _clean_branch(tx, context.repository_id, branch_name)
        reverted = resolve(tx, context.repository_id, ref).commit
        reverted.require_intact()
        if not 1 <= parent_number <= len(reverted.parent_ids):
            raise InvalidInput(
                "invalid_argument",
                f"commit {reverted.commit_id} has {len(reverted.parent_ids)} parents: there is "
                f"no number {parent_number} to go back to",
            )
        parent_id = reverted.parent_ids[parent_number - 1]
        # Its entries come back into the branch: it must be intact, not only the commit itself.
        parent = require_intact_commits(tx, context.repository_id, [parent_id])[parent_id]
    with context.reading(reverted, parent):
        merged = merge_trees(
            context.storage,
            context.tree_of(reverted),
            context.tree_of(parent),
            context.tree_of(head),
            read=context.cache.range,
        )
        _refuse_conflicts(merged, f"{shown(ref)} and what was done on {branch_name!r} since")
        if merged.change_count == 0:
            raise Conflict(
                "nothing_to_commit", f"branch {branch_name!r} has nothing of {shown(ref)} to revert"
            )
        with building(context, head, merged.changes) as tree:
            return publish(
                context,
                Publication(
                    branch=branch,
                    parent_ids=(head.commit_id,),
                    tree=tree,
                    details=details,
                    source_ids=(reverted.commit_id, parent.commit_id),
                ),
            )


def _clean_branch(tx: Transaction, repository_id: str, name: str) -> tuple[BranchRow, CommitRecord]:
    """A branch and its commit. Raises Conflict `branch_dirty` when something is staged on it."""
    branch = require_branch(tx, repository_id, name)
    if has_staged(tx, repository_id, branch.tokens):
        raise Conflict(
            "branch_dirty", f"branch {name!r} has staged changes: commit or reset them first"
        )
    head = require_commit(tx, repository_id, branch.commit_id)
    head.require_intact()
    return branch, head


def _refuse_conflicts(merged: Merged, sides: str) -> None:
    if merged.conflicts:
        paths = merged.conflicts[:CONFLICTS_SHOWN_MAX]
        raise Conflict(
            "merge_conflict",
            f"{sides} changed {len(merged.conflicts)} paths in different ways, {shown(paths[0])} "
            "among them",
            paths=list(paths),
            conflict_count=len(merged.conflicts),
        )
