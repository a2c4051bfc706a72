"""What differs: between two commits, or between a branch's commit and what is staged on it."""

from __future__ import annotations

from collections.abc import Iterator

from ebbtide.store import views
from ebbtide.store.content.diffing import Change, diff_trees
from ebbtide.store.content.entries import same_content
from ebbtide.store.content.reading import find_entry
from ebbtide.store.context import RepositoryContext
from ebbtide.store.revisions import resolve


def diff_commits(
    context: RepositoryContext, left_ref: str, right_ref: str, *, prefix: str, after: str
) -> Iterator[Change]:
    """See `Commits.diff`."""
    with context.metadata.snapshot() as tx:
        left = resolve(tx, context.repository_id, left_ref).commit
        right = resolve(tx, context.repository_id, right_ref).commit
    return diff_trees(
        context.storage,
        context.tree_of(left),
        context.tree_of(right),
        prefix=prefix,
        after=after,
        read=context.cache.range,
    )


def diff_staged(
    context: RepositoryContext, branch_name: str, *, prefix: str, after: str
) -> Iterator[Change]:
    """See `Commits.diff_staged`."""
    for commit, page in views.staged_pages(context, branch_name, prefix=prefix, after=after):
        tree = context.tree_of(commit)
        for path, staged in page:
            committed = find_entry(context.storage, tree, path, read=context.cache.range)
            if not same_content(committed, staged):
                yield Change(path, committed, staged)
