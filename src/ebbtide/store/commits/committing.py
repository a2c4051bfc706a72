"""Commits: the staged changes of a branch become its next commit.

A commit first seals the staging token, so that writes continue under a new one. Then it writes the
tree, outside any transaction. Last it moves the branch. If the commit fails in between, its changes
stay sealed: reads show them, and the next commit includes them. Not for: merges and reverts
(`merging`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ebbtide.errors import Conflict
from ebbtide.ids import new_id
from ebbtide.store.commits.publishing import CommitDetails, Publication, building, publish
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commits import CommitRecord, require_intact_commits
from ebbtide.store.objects.views import StagedChange, newest_first
from ebbtide.store.refs.protection import require_writable
from ebbtide.store.refs.queries import BranchRow, update_branch
from ebbtide.store.staging.queries import has_staged, page_of_staged

PAGE_ROWS: Final = 5000


def commit_staged(
    context: RepositoryContext, branch_name: str, details: CommitDetails, *, allow_empty: bool
) -> CommitRecord:
    """Commits the staged changes of a branch, as `Commits.commit` describes."""
    details.check()
    context.touch_owner()
    branch, parent = _seal(context, branch_name, allow_empty=allow_empty)
    changes = newest_first(*(_staged_under(context, token) for token in branch.sealed_tokens))
    with building(context, parent, changes) as tree:
        return publish(
            context,
            Publication(
                branch=branch,
                parent_ids=(parent.commit_id,),
                tree=tree,
                details=details,
                commits_staged=True,
            ),
        )


def _seal(
    context: RepositoryContext, branch_name: str, *, allow_empty: bool
) -> tuple[BranchRow, CommitRecord]:
    """Seals the staged changes. Returns the branch with its sealed tokens, and its commit."""
    repository_id = context.repository_id
    with context.metadata.transaction() as tx:
        tx.lock_repository(repository_id)
        branch = require_writable(tx, repository_id, branch_name, act="commit to", lock="exclusive")
        if has_staged(tx, repository_id, [branch.staging_token]):
            branch = replace(
                branch,
                staging_token=new_id(),
                sealed_tokens=(branch.staging_token, *branch.sealed_tokens),
            )
            update_branch(
                tx,
                repository_id,
                branch.branch_id,
                staging_token=branch.staging_token,
                sealed_tokens=branch.sealed_tokens,
            )
        elif not allow_empty and not has_staged(tx, repository_id, branch.sealed_tokens):
            raise Conflict("nothing_to_commit", f"nothing is staged on branch {branch_name!r}")
        parents = require_intact_commits(tx, repository_id, [branch.commit_id])
        return branch, parents[branch.commit_id]


def _staged_under(context: RepositoryContext, token: str) -> Iterator[StagedChange]:
    """Yields all changes under a sealed token by path, in pages.

    No change is added under a sealed token. If changes are dropped meanwhile, `publish` refuses.
    """
    after = ""
    while True:
        with context.metadata.snapshot() as tx:
            page = page_of_staged(tx, context.repository_id, token, after=after, amount=PAGE_ROWS)
        yield from page
        if len(page) < PAGE_ROWS:
            return
        after = page[-1][0]
