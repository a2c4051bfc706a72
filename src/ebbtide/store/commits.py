"""The commits of a repository: made, merged, reverted, compared and listed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from ebbtide.escaping import shown
from ebbtide.store import comparing, history
from ebbtide.store.committing import commit_staged
from ebbtide.store.content.diffing import Change
from ebbtide.store.content.merging import Strategy
from ebbtide.store.context import RepositoryContext
from ebbtide.store.listing import Page, page_of
from ebbtide.store.merging import merge_into, pick_onto, revert_on
from ebbtide.store.metadata.commits import CommitRecord
from ebbtide.store.publishing import CommitDetails
from ebbtide.store.resetting import reset_all, reset_paths
from ebbtide.store.revisions import resolve


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
        """Make what is staged on a branch its next version.

        A `date` stands for any instant within `date_precision` from it on, so that one in whole
        seconds may fall into the second of its parent.

        Raises Conflict: `nothing_to_commit`, `branch_moved` (what was staged is still there),
        `write_expired`; InvalidInput `invalid_date` or `invalid_argument`; Refused `clock_skew`
        or `storage_foreign`; NotFound `branch_not_found`; Failed.
        """
        details = CommitDetails(message, committer, date, metadata or {}, date_precision)
        return commit_staged(self._context, branch, details, allow_empty=allow_empty)

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
        """Merge what `source_ref` changed since the youngest common commit into a branch.

        Always a commit of its own, with the branch's commit as first parent and, unless it is a
        `squash`, the source as second. Paths that both sides changed differently are refused,
        unless a strategy (`source-wins`, `dest-wins`) decides them. Raises Conflict:
        `nothing_to_merge`, `branch_dirty`, `merge_conflict` (details: `paths`, `conflict_count`),
        `branch_moved`;
        Gone `commit_expired` for the source or a forgotten common commit; and as `commit`.
        """
        if message is None:
            message = f"Merge {shown(source_ref)} into {shown(destination_branch)}"
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
        """The ids of the commits that two refs mean, and of the youngest that both descend from.

        Raises as `get`; Conflict `nothing_to_merge` where there is none.
        """
        return comparing.merge_base_ids(self._context, left_ref, right_ref)

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
        """Undo on a branch what a commit changed against one of its parents; None is the only one.

        Raises Conflict: `merge_conflict` where the branch changed the same paths since,
        `nothing_to_commit`, `branch_dirty`, `branch_moved`; Gone `commit_expired` for the commit
        or that parent; InvalidInput `invalid_argument` for a parent that it has not; and as
        `commit`.
        """
        details = CommitDetails(message or f"Revert {shown(ref)}", committer, date, metadata or {})
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
        """Make on a branch the change that a commit made against one of its parents.

        Without a message of its own the new commit has that of the picked one, and its metadata.
        Raises Conflict: `merge_conflict`, `nothing_to_commit`, `branch_dirty`, `branch_moved`; Gone
        `commit_expired` for the commit, or a parent that was forgotten; InvalidInput
        `invalid_argument` for a merge without a number, or one that it has not; and as `commit`.
        """
        details = None
        if message is not None:
            details = CommitDetails(message, committer, None, metadata or {})
        return pick_onto(
            self._context,
            branch,
            ref,
            details,
            committer=committer,
            parent_number=parent_number,
        )

    def reset(self, branch: str) -> None:
        """Drop everything that is staged on a branch, at once, however much it is.

        A commit that is under way gets Conflict `branch_moved`. Raises NotFound
        `branch_not_found`.
        """
        reset_all(self._context, branch)

    def reset_prefix(self, branch: str, prefix: str) -> int:
        """Drop what is staged at the paths with a prefix; the number of changes. As `reset`."""
        return reset_paths(self._context, branch, prefix=prefix)

    def reset_path(self, branch: str, path: str) -> int:
        """Drop what is staged at one path; the number of changes. As `reset`."""
        return reset_paths(self._context, branch, path=path)

    def get(self, ref: str) -> CommitRecord:
        """The record of the commit that `ref` means, or its stub.

        Raises InvalidInput `invalid_argument`, NotFound, Conflict `ref_ambiguous`.
        """
        with self._context.metadata.snapshot() as tx:
            return resolve(tx, self._context.repository_id, ref).commit

    def resolve(self, ref: str) -> str:
        """The id of the commit that `ref` means. Raises as `get`."""
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
        """The commit that `ref` means and its ancestors, the youngest first.

        With `first_parent` only the main ancestry. `after` is the last commit of the part
        before; InvalidInput where it is not in this log. Commits before `since` are left out, and
        those behind the one that `stop_at` means. With `paths` or `prefixes` only those are shown
        that changed any such path against their first parent, of what was not forgotten. Expired
        commits are in it. Raises as `get`.
        """
        wanted = history.Wanted(first_parent, since, stop_at, tuple(paths), tuple(prefixes))
        return history.log(self._context, ref, wanted, after=after, amount=amount)

    def diff(
        self, left_ref: str, right_ref: str, *, prefix: str = "", after: str = ""
    ) -> Iterator[Change]:
        """The paths that differ between two commits, ascending; nothing staged is looked at.

        Works for expired commits too. Raises as `get`, and Gone `commit_expired` for one that
        was forgotten.
        """
        return comparing.diff_commits(
            self._context, left_ref, right_ref, prefix=prefix, after=after
        )

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
        """As `diff`, in parts; with `three_dot`, what the right side changed since the youngest
        common commit and the left side has not, with what both changed marked as a conflict.

        Raises as `diff`, InvalidInput `invalid_argument`, Conflict `nothing_to_merge`.
        """
        compare = comparing.compare_commits if three_dot else comparing.diff_commits
        return page_of(
            lambda place: compare(self._context, left_ref, right_ref, prefix=prefix, after=place),
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
        """As `diff_staged`, in parts. Raises as it does, and InvalidInput `invalid_argument`."""
        return page_of(
            lambda place: self.diff_staged(branch, prefix=prefix, after=place),
            prefix=prefix,
            delimiter=delimiter,
            after=after,
            amount=amount,
        )

    def diff_staged(self, branch: str, *, prefix: str = "", after: str = "") -> Iterator[Change]:
        """The paths where what is staged differs from the branch's commit, ascending.

        Raises NotFound `branch_not_found`.
        """
        return comparing.diff_staged(self._context, branch, prefix=prefix, after=after)
