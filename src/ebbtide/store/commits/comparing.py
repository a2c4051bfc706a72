"""Differences between two commits, or between a branch's commit and its staged changes.

Not for: comparing trees (`content.diffing`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ebbtide.errors import Conflict
from ebbtide.escaping import shown
from ebbtide.store.commits.history import merge_base
from ebbtide.store.content.diffing import Change, diff_trees
from ebbtide.store.content.entries import same_content
from ebbtide.store.content.reading import find_entry
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commits import CommitRecord
from ebbtide.store.objects import views
from ebbtide.store.refs.revisions import resolve


def diff_commits(
    context: RepositoryContext, left_ref: str, right_ref: str, *, prefix: str, after: str
) -> Iterator[Change]:
    """Returns the changes of `Commits.diff`. If a commit is missing, this call raises the error,
    not the iteration."""
    with context.metadata.snapshot() as tx:
        left = resolve(tx, context.repository_id, left_ref).commit
        right = resolve(tx, context.repository_id, right_ref).commit
    with context.reading(left, right):
        trees = context.tree_of(left), context.tree_of(right)

    def changes() -> Iterator[Change]:
        with context.reading(left, right):
            yield from diff_trees(
                context.storage, *trees, prefix=prefix, after=after, read=context.cache.range
            )

    return changes()


def diff_staged(
    context: RepositoryContext, branch_name: str, *, prefix: str, after: str
) -> Iterator[Change]:
    """Yields the staged changes of `Commits.diff_staged`."""
    for commit, page in views.staged_pages(context, branch_name, prefix=prefix, after=after):
        tree = context.tree_of(commit)
        for path, staged in page:
            committed = find_entry(context.storage, tree, path, read=context.cache.range)
            if not same_content(committed, staged):
                yield Change(path, committed, staged)


def compare_commits(
    context: RepositoryContext, left_ref: str, right_ref: str, *, prefix: str, after: str
) -> Iterator[Change]:
    """Yields the changes of the right side since the common commit, with conflicts marked."""
    left, right, base = _with_base(context, left_ref, right_ref)
    with context.reading(left, right, base):
        base_tree = context.tree_of(base)
    for change in diff_commits(
        context, left.commit_id, right.commit_id, prefix=prefix, after=after
    ):
        with context.reading(base):
            before = find_entry(context.storage, base_tree, change.path, read=context.cache.range)
        if same_content(before, change.right):
            continue  # Only the left side changed it.
        yield replace(change, conflicts=not same_content(before, change.left))


def merge_base_ids(
    context: RepositoryContext, left_ref: str, right_ref: str
) -> tuple[str, str, str]:
    """Returns the ids of the left, the right and the youngest common commit."""
    left, right, base = _with_base(context, left_ref, right_ref)
    return left.commit_id, right.commit_id, base.commit_id


def _with_base(
    context: RepositoryContext, left_ref: str, right_ref: str
) -> tuple[CommitRecord, CommitRecord, CommitRecord]:
    with context.metadata.snapshot() as tx:
        left = resolve(tx, context.repository_id, left_ref).commit
        right = resolve(tx, context.repository_id, right_ref).commit
        base = merge_base(tx, context.repository_id, left, right)
    if base is None:
        raise Conflict(
            "nothing_to_merge",
            f"{shown(left_ref)} and {shown(right_ref)} have no commit in common",
        )
    return left, right, base
