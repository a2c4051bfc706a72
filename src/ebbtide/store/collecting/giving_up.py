"""Giving up a commit whose data is damaged for good: an operator's explicit decision.

A live tree or range that cannot be read stops every collector run, because the files that it refers
to are unknown. Not for: finding damage.
"""

from __future__ import annotations

from ebbtide.errors import Conflict
from ebbtide.store.collections.queries import is_collection_on
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commits import CommitRecord, is_held, require_commit, write_given_up
from ebbtide.store.names import check_text
from ebbtide.store.refs.queries import is_branch_on, is_tag_on
from ebbtide.store.repositories.promises import promised

REASON_BYTES_MAX = 1024


def give_up(context: RepositoryContext, commit_id: str, reason: str) -> CommitRecord:
    """Records that a damaged commit is lost, so that it no longer stops collector runs.

    From now on the commit counts as expired. Nothing can be made from it, and runs delete the data
    that only this commit needs.

    Raises Conflict `commit_in_use` while a branch, tag, collection or hold is on it; NotFound
    `commit_not_found`; InvalidInput `invalid_argument`.
    """
    check_text("the reason", reason, bytes_max=REASON_BYTES_MAX)
    repository_id = context.repository_id
    with context.metadata.transaction() as tx:
        # Exclusive, because a transaction that is publishing a commit can have found this commit
        # intact. This lock waits for it.
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
                f"a branch, tag, collection or hold is on commit {commit_id}, perhaps in the "
                "trash: move or delete it first",
            )
        write_given_up(tx, repository_id, commit_id, reason)
        return require_commit(tx, repository_id, commit_id)
