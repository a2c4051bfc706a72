"""Resets: staged changes are dropped. A branch's commit is never moved back.

A commit that is being made from what is dropped must not be published: a reset changes the sealed
tokens that it began with, and publishing compares them.
"""

from __future__ import annotations

from ebbtide.ids import new_id
from ebbtide.store.context import RepositoryContext
from ebbtide.store.metadata.branches import require_branch, update_branch
from ebbtide.store.metadata.released import drop_tokens
from ebbtide.store.metadata.staged import delete_staged, delete_staged_prefix


def reset_all(context: RepositoryContext, branch_name: str) -> None:
    """Drop everything that is staged on a branch, however much: its tokens are the branch's no
    more, and the rest is done later."""
    repository_id = context.repository_id
    with context.metadata.transaction() as tx:
        branch = require_branch(tx, repository_id, branch_name, lock="exclusive")
        update_branch(
            tx,
            repository_id,
            branch.branch_id,
            staging_token=new_id(),
            sealed_tokens=(),
        )
        drop_tokens(tx, repository_id, branch.tokens)


def reset_paths(
    context: RepositoryContext, branch_name: str, *, path: str | None = None, prefix: str = ""
) -> int:
    """Drop what is staged at a path, or at all with a prefix; the number of changes."""
    repository_id, lease_ttl = context.repository_id, context.settings.lease_ttl
    with context.metadata.transaction() as tx:
        branch = require_branch(tx, repository_id, branch_name, lock="exclusive")
        if branch.sealed_tokens:
            # An empty token as the oldest makes the list another one, and what is sealed stays.
            update_branch(
                tx,
                repository_id,
                branch.branch_id,
                sealed_tokens=(*branch.sealed_tokens, new_id()),
            )
        if path is not None:
            return delete_staged(tx, repository_id, branch.tokens, [path], lease_ttl=lease_ttl)
        return delete_staged_prefix(tx, repository_id, branch.tokens, prefix, lease_ttl=lease_ttl)
