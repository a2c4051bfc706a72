"""A commit whose data is damaged for good is given up by an operator, explicitly.

A live tree or range that cannot be read stops every collector run, since what it refers to cannot
be known. Not for: finding damage.
"""

from __future__ import annotations

from ebbtide.errors import Conflict
from ebbtide.store.context import RepositoryContext
from ebbtide.store.metadata.branches import is_branch_on
from ebbtide.store.metadata.collections import is_collection_on
from ebbtide.store.metadata.commits import CommitRecord, is_held, require_commit, write_given_up
from ebbtide.store.metadata.tags import is_tag_on
from ebbtide.store.names import check_text
from ebbtide.store.promises import promised

REASON_BYTES_MAX = 1024


def give_up(context: RepositoryContext, commit_id: str, reason: str) -> CommitRecord:
    """Record that a damaged commit is lost, so that it blocks no collector any more.

    From now on it counts as expired: nothing can be made from it, and what only it needs is
    collected. Raises Conflict `commit_in_use` while a branch, tag or hold is on it, NotFound
    `commit_not_found`, InvalidInput `invalid_argument`.
    """
    check_text("the reason", reason, bytes_max=REASON_BYTES_MAX)
    repository_id = context.repository_id
    with context.metadata.transaction() as tx:
        # Exclusively: whoever publishes a commit has looked at this one among what it rests on.
        tx.lock_repository(repository_id, "exclusive")
        require_commit(tx, repository_id, commit_id)
        gone_before = tx.now() - promised(tx, context.settings).trash_time
        if (
            is_branch_on(tx, repository_id, commit_id, gone_before=gone_before)
            or is_tag_on(tx, repository_id, commit_id, gone_before=gone_before)
            or is_collection_on(tx, repository_id, commit_id)
            or is_held(tx, repository_id, commit_id)
        ):
            raise Conflict(
                "commit_in_use",
                f"a branch, tag or hold is on commit {commit_id}, perhaps in the trash: move or "
                "delete it first",
            )
        write_given_up(tx, repository_id, commit_id, reason)
        return require_commit(tx, repository_id, commit_id)
