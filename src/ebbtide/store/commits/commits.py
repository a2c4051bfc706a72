"""The commits of a repository: making, merging, reverting, comparing and listing them. Also resets,
which drop staged changes; a hard reset also moves the branch to another commit.

A commit that is being made from dropped changes must not be published. A reset therefore changes
the sealed tokens of the branch, and a publication compares them with those that the commit began
with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from ebbtide.errors import Conflict
from ebbtide.ids import new_id
from ebbtide.store.commits import history
from ebbtide.store.commits.merges import (
    merge_into,
    merge_message,
    pick_onto,
    revert_message,
    revert_on,
)
from ebbtide.store.commits.publication import CommitDetails, Publication, building, publish
from ebbtide.store.content.differences import Change, Strategy, diff_trees
from ebbtide.store.content.entries import same_content
from ebbtide.store.content.trees import find_entry
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import CommitRecord, require_intact_commits
from ebbtide.store.database.engine import Transaction
from ebbtide.store.objects import views
from ebbtide.store.page import Page, page_of
from ebbtide.store.refs.protection import require_writable
from ebbtide.store.refs.ref_rows import BranchRow, insert_reflog, update_branch
from ebbtide.store.refs.revisions import resolve
from ebbtide.store.staging.released import drop_tokens
from ebbtide.store.staging.staged_rows import (
    delete_staged,
    delete_staged_prefix,
    has_staged,
    page_of_staged,
)
from ebbtide.text import shown


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


PAGE_ROWS: Final = 5000


class Commits:
    """The commits of one repository."""

    def __init__(self, context: RepositoryContext) -> None:
        self._context = context

    def commit(
        self,
        branch: str,
        message: str,
        *,
        metadata: Mapping[str, str] | None = None,
        date: datetime | None = None,
        date_precision: timedelta = timedelta(0),
        committer: str = "",
        allow_empty: bool = False,
    ) -> CommitRecord:
        """Commits what is staged on a branch.

        The commit first seals the staging token, so that writes continue under a new one. Then it
        writes the tree, outside any transaction. Last it moves the branch. If it fails in between,
        its changes stay sealed: reads show them, and the next commit includes them.

        `date` means any instant within `date_precision` after it. With a precision of one second,
        it can therefore be the same second as the date of the commit's parent.

        Raises Conflict `nothing_to_commit`, `write_expired`, or `branch_moved`: the staged changes
        are still there. Raises InvalidInput `invalid_date` or `invalid_argument`; Refused
        `clock_skew` or `storage_foreign`; NotFound `branch_not_found`; Failed.
        """
        details = CommitDetails(message, committer, date, metadata or {}, date_precision)
        details.check()
        context = self._context
        context.touch_owner()
        sealed, parent = _seal(context, branch, allow_empty=allow_empty)
        changes = views.newest_first(
            *(_staged_under(context, token) for token in sealed.sealed_tokens)
        )
        with building(context, parent, changes) as tree:
            publication = Publication(
                branch=sealed,
                parent_ids=(parent.commit_id,),
                tree=tree,
                details=details,
                commits_staged=True,
            )
            return publish(context, publication)

    def merge(
        self,
        source_ref: str,
        destination_branch: str,
        *,
        message: str | None = None,
        strategy: Strategy | None = None,
        date: datetime | None = None,
        committer: str = "",
        metadata: Mapping[str, str] | None = None,
        squash: bool = False,
        allow_empty: bool = False,
    ) -> CommitRecord:
        """Merges the changes of `source_ref` since the youngest common commit into a branch.

        The result is always a new commit. Its first parent is the branch's commit, and its second
        one the source, unless `squash`. Paths that both sides changed differently are refused,
        unless a `strategy` (`source-wins`, `dest-wins`) decides them. The metadata names the
        strategy, or `default`, as `.lakefs.merge.strategy`.

        Raises Conflict `nothing_to_merge`, `branch_dirty`, `branch_moved`, `merge_conflict`
        (details: `paths`, `conflict_count`). Raises Gone `commit_expired` for the source or a
        forgotten common commit, and as `commit` does.
        """
        if message is None:
            message = merge_message(source_ref, destination_branch)
        details = CommitDetails(message, committer, date, metadata or {})
        return merge_into(
            self._context,
            source_ref,
            destination_branch,
            details,
            strategy,
            squash=squash,
            allow_empty=allow_empty,
        )

    def merge_base(self, left_ref: str, right_ref: str) -> tuple[str, str, str]:
        """Returns three commit ids: of both refs, and of their youngest common commit.

        Raises as `get` does, and Conflict `nothing_to_merge` if there is no common commit.
        """
        left, right, base = self._with_base(left_ref, right_ref)
        return left.commit_id, right.commit_id, base.commit_id

    def _with_base(
        self, left_ref: str, right_ref: str
    ) -> tuple[CommitRecord, CommitRecord, CommitRecord]:
        repository_id = self._context.repository_id
        with self._context.metadata.snapshot() as tx:
            left = resolve(tx, repository_id, left_ref).commit
            right = resolve(tx, repository_id, right_ref).commit
            base = history.merge_base(tx, repository_id, left, right)
        if base is None:
            raise Conflict(
                "nothing_to_merge",
                f"{shown(left_ref)} and {shown(right_ref)} have no commit in common",
            )
        return left, right, base

    def revert(
        self,
        branch: str,
        ref: str,
        *,
        parent_number: int | None = 1,
        message: str | None = None,
        date: datetime | None = None,
        committer: str = "",
        metadata: Mapping[str, str] | None = None,
        allow_empty: bool = False,
    ) -> CommitRecord:
        """Reverts on a branch the changes of a commit against one of its parents.

        `parent_number` counts from 1; None means the only parent.

        Raises Conflict `merge_conflict` if the branch changed the same paths since,
        `nothing_to_commit`, `branch_dirty`, `branch_moved`. Raises Gone `commit_expired` for the
        commit or that parent; InvalidInput `invalid_argument` for a parent that does not exist; and
        as `commit` does.
        """
        details = CommitDetails(message or revert_message(ref), committer, date, metadata or {})
        return revert_on(
            self._context,
            branch,
            ref,
            details,
            parent_number=parent_number,
            allow_empty=allow_empty,
        )

    def cherry_pick(
        self,
        branch: str,
        ref: str,
        *,
        parent_number: int | None = None,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
        committer: str = "",
    ) -> CommitRecord:
        """Repeats on a branch the changes of a commit against one of its parents.

        If `message` or `metadata` is None, the new commit takes it from the picked commit. Its
        metadata also names the picked commit as `cherry-pick-origin`, and the committer of that
        commit as `cherry-pick-committer`.

        Raises Conflict `merge_conflict`, `nothing_to_commit`, `branch_dirty`, `branch_moved`.
        Raises Gone `commit_expired` for the commit, or for a forgotten parent. Raises InvalidInput
        `invalid_argument` for a merge without `parent_number`, or a parent that does not exist; and
        as `commit` does.
        """
        return pick_onto(
            self._context,
            branch,
            ref,
            message=message,
            metadata=metadata,
            committer=committer,
            parent_number=parent_number,
        )

    def reset(self, branch: str) -> None:
        """Drops all staged changes of a branch. It takes the same time for any number of changes.

        A commit that is under way fails with Conflict `branch_moved`. Raises NotFound
        `branch_not_found`, Conflict `write_protected`.
        """
        reset_all(self._context, branch)

    def reset_to(self, branch: str, ref: str, *, force: bool = False) -> CommitRecord:
        """Moves a branch to the commit that `ref` names. Returns this commit.

        Commits that no other ref reaches are then subject to the retention policy. Readers keep the
        data of the branch's former commit for one lease. With `force`, staged changes are dropped.

        Raises Conflict `branch_dirty` for staged changes, `write_protected`; Gone `commit_expired`;
        Refused `storage_foreign`; and as `get` does. Source: lakeFS's hard reset.
        """
        return reset_to(self._context, branch, ref, force=force)

    def reset_prefix(self, branch: str, prefix: str) -> int:
        """Drops the staged changes at paths with a prefix. Returns their number. Raises as `reset`
        does."""
        return reset_paths(self._context, branch, prefix=prefix)

    def reset_path(self, branch: str, path: str) -> int:
        """Drops the staged change at one path. Returns the number of changes. Raises as `reset`
        does."""
        return reset_paths(self._context, branch, path=path)

    def get(self, ref: str) -> CommitRecord:
        """Returns the record, or the stub, of the commit that `ref` names.

        Raises InvalidInput `invalid_argument`, NotFound, Conflict `ref_ambiguous`.
        """
        with self._context.metadata.snapshot() as tx:
            return resolve(tx, self._context.repository_id, ref).commit

    def resolve(self, ref: str) -> str:
        """Returns the id of the commit that `ref` names. Raises as `get` does."""
        return self.get(ref).commit_id

    def log(
        self,
        ref: str,
        *,
        first_parent: bool = False,
        after: str | None = None,
        amount: int = 100,
        since: datetime | None = None,
        stop_at: str | None = None,
        paths: Sequence[str] = (),
        prefixes: Sequence[str] = (),
    ) -> list[CommitRecord]:
        """Returns the commit that `ref` names and its ancestors, the youngest first.

        `first_parent` follows first parents only. `after` is the last commit of the previous page.
        `since` leaves out older commits. `stop_at` names the last commit to return.

        With `paths` or `prefixes`, the log has only commits that changed such a path against their
        first parent. If a commit or its first parent was forgotten or given up, they cannot be
        compared, and the commit is left out. Expired commits are in the log.

        Raises as `get` does, and InvalidInput `invalid_argument` if `after` is not in this log.
        """
        wanted = history.Wanted(first_parent, since, stop_at, tuple(paths), tuple(prefixes))
        return history.log(self._context, ref, wanted, after=after, amount=amount)

    def diff(
        self, left_ref: str, right_ref: str, *, prefix: str = "", after: str = ""
    ) -> Iterator[Change]:
        """Yields the paths that differ between two commits, ascending. Staged changes are ignored.

        This works for expired commits, too. Raises as `get` does, and Gone `commit_expired` for a
        forgotten commit: this call, and not the iteration.
        """
        context = self._context
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

    def _compare(
        self, left_ref: str, right_ref: str, *, prefix: str, after: str
    ) -> Iterator[Change]:
        """Yields the changes of the right side since the common commit, with conflicts marked."""
        context = self._context
        left, right, base = self._with_base(left_ref, right_ref)
        with context.reading(left, right, base):
            base_tree = context.tree_of(base)
        for change in self.diff(left.commit_id, right.commit_id, prefix=prefix, after=after):
            with context.reading(base):
                read = context.cache.range
                before = find_entry(context.storage, base_tree, change.path, read=read)
            if same_content(before, change.right):
                continue  # Only the left side changed it.
            yield replace(change, conflicts=not same_content(before, change.left))

    def page_of_diff(
        self,
        left_ref: str,
        right_ref: str,
        *,
        three_dot: bool = False,
        prefix: str = "",
        delimiter: str = "",
        after: str = "",
        amount: int = 1000,
    ) -> Page[Change]:
        """Returns a page of the paths that differ between two commits.

        With `three_dot`, these are only the paths that the right side changed since the youngest
        common commit. Paths that both sides changed differently are marked as conflicts.

        Raises as `diff` does, InvalidInput `invalid_argument`, Conflict `nothing_to_merge`.
        """
        compare = self._compare if three_dot else self.diff
        return page_of(
            lambda place: compare(left_ref, right_ref, prefix=prefix, after=place),
            prefix=prefix,
            delimiter=delimiter,
            after=after,
            amount=amount,
        )

    def page_of_staged(
        self,
        branch: str,
        *,
        prefix: str = "",
        delimiter: str = "",
        after: str = "",
        amount: int = 1000,
    ) -> Page[Change]:
        """Returns a page of `diff_staged`. Raises as `diff_staged` does, and InvalidInput
        `invalid_argument`."""
        return page_of(
            lambda place: self.diff_staged(branch, prefix=prefix, after=place),
            prefix=prefix,
            delimiter=delimiter,
            after=after,
            amount=amount,
        )

    def diff_staged(self, branch: str, *, prefix: str = "", after: str = "") -> Iterator[Change]:
        """Yields the paths where the staged changes differ from the branch's commit, ascending.

        Raises NotFound `branch_not_found`.
        """
        context = self._context
        for commit, page in views.staged_pages(context, branch, prefix=prefix, after=after):
            tree = context.tree_of(commit)
            for path, staged in page:
                committed = find_entry(context.storage, tree, path, read=context.cache.range)
                if not same_content(committed, staged):
                    yield Change(path, committed, staged)


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


def _staged_under(context: RepositoryContext, token: str) -> Iterator[views.StagedChange]:
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
