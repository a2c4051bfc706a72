"""Merges, reverts and cherry-picks: commits that are made from commits, not from staged changes.

Not for: merging trees (`content.differences`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, get_args

from ebbtide.errors import Conflict, InvalidInput
from ebbtide.store.commits.history import merge_base
from ebbtide.store.commits.publication import CommitDetails, Publication, building, publish
from ebbtide.store.content.differences import Merged, Strategy, merge_trees
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import CommitRecord, require_commit, require_intact_commits
from ebbtide.store.database.engine import Transaction
from ebbtide.store.refs.ref_rows import BranchRow, require_branch
from ebbtide.store.refs.revisions import resolve
from ebbtide.store.staging.staged_rows import has_staged
from ebbtide.text import count_text, shown

CONFLICTS_SHOWN_MAX: Final = 100

# Metadata that lakeFS adds, under its names (`Merge` and `CherryPick` in
# `pkg/graveler/graveler.go`). Given metadata does not replace it.
STRATEGY_KEY: Final = ".lakefs.merge.strategy"
NO_STRATEGY: Final = "default"
ORIGIN_KEY: Final = "cherry-pick-origin"
ORIGIN_COMMITTER_KEY: Final = "cherry-pick-committer"


def merge_message(source_ref: str, branch_name: str) -> str:
    """Returns the message of a merge that was given none."""
    return f"Merge {shown(source_ref)} into {shown(branch_name)}"


def revert_message(ref: str) -> str:
    """Returns the message of a revert that was given none."""
    return f"Revert {shown(ref)}"


def merge_into(
    context: RepositoryContext,
    source_ref: str,
    branch_name: str,
    details: CommitDetails,
    strategy: Strategy | None,
    *,
    squash: bool = False,
    allow_empty: bool = False,
) -> CommitRecord:
    """Merges a ref into a branch, as `Commits.merge` describes."""
    if strategy is not None and strategy not in get_args(Strategy):
        raise InvalidInput(
            "invalid_argument",
            f"{shown(strategy)} is no strategy: write {' or '.join(get_args(Strategy))}",
        )
    used = {STRATEGY_KEY: strategy or NO_STRATEGY}
    details = replace(details, metadata={**details.metadata, **used})
    details.check()
    context.touch_owner()
    with context.metadata.snapshot() as tx:
        branch, head = _clean_branch(tx, context.repository_id, branch_name)
        source = resolve(tx, context.repository_id, source_ref).commit
        source.require_intact()
        base = merge_base(tx, context.repository_id, head, source)
    if base is None:
        raise Conflict(
            "nothing_to_merge",
            f"branch {branch_name!r} and {shown(source_ref)} have no commit in common",
        )
    if base.commit_id == source.commit_id and not allow_empty:
        raise Conflict(
            "nothing_to_merge",
            f"branch {branch_name!r} has all of {shown(source_ref)} already: there are no changes "
            "to merge",
        )
    # The base is only compared, so it can be closed. A forgotten base is an error: with any other
    # base, paths that one side deleted would be in the result again.
    return _publish_merged(
        context,
        _Merge(branch, head, base, source, f"{shown(source_ref)} and branch {branch_name!r}"),
        details,
        strategy=strategy,
        parent_ids=(head.commit_id,) if squash else (head.commit_id, source.commit_id),
        source_ids=(source.commit_id,),
    )


def revert_on(
    context: RepositoryContext,
    branch_name: str,
    ref: str,
    details: CommitDetails,
    *,
    parent_number: int | None,
    allow_empty: bool = False,
) -> CommitRecord:
    """Reverts a commit on a branch, as `Commits.revert` describes."""
    details.check()
    context.touch_owner()
    with context.metadata.snapshot() as tx:
        branch, head = _clean_branch(tx, context.repository_id, branch_name)
        reverted = resolve(tx, context.repository_id, ref).commit
        reverted.require_intact()
        # The result contains entries of the parent. So the parent must be intact, too.
        parent_id = _parent_id(reverted, parent_number)
        parent = require_intact_commits(tx, context.repository_id, [parent_id])[parent_id]
    sides = f"{shown(ref)} and later commits on {branch_name!r}"
    return _publish_merged(
        context,
        _Merge(branch, head, reverted, parent, sides),
        details,
        parent_ids=(head.commit_id,),
        source_ids=(reverted.commit_id, parent.commit_id),
        needs_change=None
        if allow_empty
        else f"branch {branch_name!r} has no change of {shown(ref)} to revert",
    )


def pick_onto(
    context: RepositoryContext,
    branch_name: str,
    ref: str,
    *,
    message: str | None,
    metadata: Mapping[str, str] | None,
    committer: str,
    parent_number: int | None,
) -> CommitRecord:
    """Picks a commit onto a branch, as `Commits.cherry_pick` describes."""
    context.touch_owner()
    with context.metadata.snapshot() as tx:
        branch, head = _clean_branch(tx, context.repository_id, branch_name)
        picked = resolve(tx, context.repository_id, ref).commit
        picked.require_intact()
        # The parent is only compared, so it can be closed.
        parent = require_commit(tx, context.repository_id, _parent_id(picked, parent_number))
    details = CommitDetails(
        picked.message if message is None else message,
        committer,
        None,
        {
            **(picked.metadata if metadata is None else metadata),
            ORIGIN_KEY: picked.commit_id,
            ORIGIN_COMMITTER_KEY: picked.committer,
        },
    )
    details.check()
    return _publish_merged(
        context,
        _Merge(branch, head, parent, picked, f"{shown(ref)} and branch {branch_name!r}"),
        details,
        parent_ids=(head.commit_id,),
        source_ids=(picked.commit_id,),
        needs_change=f"branch {branch_name!r} has all that {shown(ref)} changed already",
    )


@dataclass(frozen=True, slots=True)
class _Merge:
    """A merge: the changes from `base` to `source` are applied to `head`, the branch's commit.
    `sides` names both sides in messages."""

    branch: BranchRow
    head: CommitRecord
    base: CommitRecord
    source: CommitRecord
    sides: str


def _publish_merged(
    context: RepositoryContext,
    merge: _Merge,
    details: CommitDetails,
    *,
    parent_ids: tuple[str, ...],
    source_ids: tuple[str, ...],
    strategy: Strategy | None = None,
    needs_change: str | None = None,
) -> CommitRecord:
    """Merges the trees, and publishes the result.

    Raises Conflict `merge_conflict`. Raises Conflict `nothing_to_commit` with the text
    `needs_change`, if this text is given and nothing changes.
    """
    with context.reading(merge.base, merge.source):
        merged = merge_trees(
            context.storage,
            context.tree_of(merge.base),
            context.tree_of(merge.source),
            context.tree_of(merge.head),
            strategy=strategy,
            read=context.cache.range,
        )
        _refuse_conflicts(merged, merge.sides)
        if needs_change is not None and merged.change_count == 0:
            raise Conflict("nothing_to_commit", needs_change)
        with building(context, merge.head, merged.changes) as tree:
            return publish(
                context,
                Publication(
                    branch=merge.branch,
                    parent_ids=parent_ids,
                    tree=tree,
                    details=details,
                    source_ids=source_ids,
                ),
            )


def _parent_id(commit: CommitRecord, number: int | None) -> str:
    """Returns the id of the parent with that number, counted from 1. None means the only parent.

    Raises InvalidInput `invalid_argument`.
    """
    count = len(commit.parent_ids)
    if number is None and count > 1:
        raise InvalidInput(
            "invalid_argument",
            f"commit {commit.commit_id} is a merge commit: you must specify 1-based parent number, "
            f"from 1 to {count}, of the parent to compare it with",
        )
    number = 1 if number is None else number
    if not 1 <= number <= count:
        raise InvalidInput(
            "invalid_argument",
            f"commit {commit.commit_id} has {count_text(count, 'parent')}: there is no parent "
            f"{number}",
        )
    return commit.parent_ids[number - 1]


def _clean_branch(tx: Transaction, repository_id: str, name: str) -> tuple[BranchRow, CommitRecord]:
    """Returns a branch and its commit. Raises Conflict `branch_dirty` if it has staged changes."""
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
        count = len(merged.conflicts)
        told = f"{count:,} paths in different ways, {shown(paths[0])} among them"
        raise Conflict(
            "merge_conflict",
            f"{sides} changed {told if count > 1 else f'{shown(paths[0])} in different ways'}",
            paths=list(paths),
            conflict_count=len(merged.conflicts),
        )
