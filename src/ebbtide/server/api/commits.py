"""Commits: make, read and list them; compare references, merge, revert and cherry-pick."""

from __future__ import annotations

from datetime import datetime, timedelta
from heapq import merge
from operator import attrgetter
from typing import Annotated, Final, Literal

from fastapi import Body, Query, Response
from pydantic import Field

from ebbtide.errors import InvalidInput
from ebbtide.model import EPOCH
from ebbtide.server.api.answers import answers
from ebbtide.server.api.base import OCTETS, Metadata, Seconds, Segment, Text, Wire, seconds_of
from ebbtide.server.api.lists import PageOf, Paging, PagingDep
from ebbtide.server.api.routes import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.store.access.access_keys import Role
from ebbtide.store.commits.merges import merge_message, revert_message
from ebbtide.store.commits.publication import until_published
from ebbtide.store.content.differences import Change
from ebbtide.store.content.entries import without_checksums
from ebbtide.store.database.commit_rows import CommitRecord
from ebbtide.store.page import Page


class CommitCreation(Wire):
    """A new commit. `date` gives it an earlier date, as for the commits of an imported history."""

    message: Text
    metadata: Metadata | None = None
    date: Seconds | None = None
    allow_empty: bool = False


@answers(CommitRecord)
class CommitAnswer(Wire):
    """A commit, also by the names that clients of lakeFS have. `meta_range_id` is empty if the
    commit was forgotten."""

    id: str
    parents: list[str]
    creation_date: int
    meta_range_id: str

    @classmethod
    def of(cls, record: CommitRecord) -> CommitAnswer:
        """Makes the fields of lakeFS for a commit's record."""
        return cls(
            id=record.commit_id,
            parents=list(record.parent_ids),
            creation_date=seconds_of(record.created_at),
            meta_range_id=record.tree_id or "",
        )


class CommitOverrides(Wire):
    """Message and metadata for the new commit of a revert or cherry-pick, in place of the
    defaults."""

    message: Text | None = None
    metadata: Metadata | None = None


class RevertCreation(Wire):
    """The commit to revert. `parent_number` counts from 1; 0 is for commits that have a single
    parent. `force` has no effect: no repository is read-only."""

    ref: Text
    parent_number: int = Field(0, ge=0)
    commit_overrides: CommitOverrides | None = None
    allow_empty: bool = False
    force: bool = False


class CherryPickCreation(Wire):
    """The commit to pick. `parent_number` counts from 1; only merge commits need it. `force` has no
    effect: no repository is read-only."""

    ref: Text
    parent_number: int | None = Field(None, ge=1)
    commit_overrides: CommitOverrides | None = None
    force: bool = False


class MergeCreation(Wire):
    """The options of a merge. `strategy` decides conflicts; without one, a merge with conflicts
    is refused. `allow_empty` and `force` allow a merge of a source that has no new commit."""

    message: Text | None = None
    metadata: Metadata | None = None
    strategy: Literal["source-wins", "dest-wins", ""] | None = None
    allow_empty: bool = False
    force: bool = False
    squash_merge: bool = False


class MergeAnswer(Wire):
    """The id of the commit that a merge made."""

    reference: str


class MergeBaseAnswer(Wire):
    """The ids of the source, the destination and their base commit."""

    source_commit_id: str
    destination_commit_id: str
    base_commit_id: str


class RightSide(Wire):
    """The object on the right side of a difference."""

    checksum: str
    mtime: int
    content_type: str
    metadata: dict[str, str]


class DiffAnswer(Wire):
    """A path that differs, or a prefix of paths that differ."""

    type: Literal["added", "removed", "changed", "conflict", "prefix_changed"]
    path: str
    path_type: Literal["common_prefix", "object"]
    size_bytes: int | None = None
    right: RightSide | None = None

    @classmethod
    def of(cls, change: Change, *, right_stats: bool = False, staged: bool = False) -> DiffAnswer:
        """Makes the answer for one change. As in lakeFS, a `staged` delete has the size 0."""
        entry = change.right or change.left
        assert entry is not None  # a change has at least one side
        right = None
        if right_stats and change.right is not None:
            right = RightSide(
                checksum=change.right.checksum,
                mtime=seconds_of(change.right.mtime),
                content_type=change.right.content_type or OCTETS,
                metadata=without_checksums(change.right.metadata),
            )
        return cls(
            type=change.kind,
            path=change.path,
            path_type="object",
            size_bytes=0 if staged and change.right is None else entry.size_bytes,
            right=right,
        )

    @classmethod
    def of_prefix(cls, prefix: str) -> DiffAnswer:
        """Makes the answer for all changes with a prefix."""
        return cls(type="prefix_changed", path=prefix, path_type="common_prefix")


routes = Routes("commits")

DelimiterQuery = Annotated[Text, Query()]
FILTERS_MAX: Final = 100
_REPOSITORY: Final = "/repositories/{repository:segment}"
_BRANCH: Final = _REPOSITORY + "/branches/{branch:segment}"
_MERGE: Final = _REPOSITORY + "/refs/{source:segment}/merge/{destination:segment}"


@routes.add("POST", _BRANCH + "/commits", Role.WRITER, status=201)
def commit(
    repository: Segment,
    branch: Segment,
    asked: CommitCreation,
    served: ServedDep,
    source_metarange: Annotated[Text | None, Query()] = None,
) -> CommitRecord:
    """Commits the staged changes of a branch."""
    if source_metarange:
        raise InvalidInput(
            "invalid_argument",
            "source_metarange is not supported: a commit contains the staged changes",
        )
    found = served.repository(repository)
    return until_published(
        found.context,
        branch,
        lambda _: found.commits.commit(
            branch,
            asked.message,
            metadata=asked.metadata,
            date=None if asked.date is None else EPOCH + timedelta(seconds=asked.date),
            date_precision=timedelta(seconds=1),
            committer=served.committer,
            allow_empty=asked.allow_empty,
        ),
    )


@routes.add("GET", _REPOSITORY + "/commits/{commit_id:segment}", Role.READER)
def get_commit(repository: Segment, commit_id: Segment, served: ServedDep) -> CommitRecord:
    """Returns the commit of an id, or of any other reference."""
    return served.repository(repository).commits.get(commit_id)


@routes.add("GET", _REPOSITORY + "/refs/{ref:segment}/commits", Role.READER)
def log_commits(
    repository: Segment,
    ref: Segment,
    paging: PagingDep,
    served: ServedDep,
    objects: Annotated[list[Text], Query(max_length=FILTERS_MAX)] = [],  # noqa: B006
    prefixes: Annotated[list[Text], Query(max_length=FILTERS_MAX)] = [],  # noqa: B006
    limit: Annotated[bool, Query()] = False,
    first_parent: Annotated[bool, Query()] = False,
    since: Annotated[datetime | None, Query()] = None,
    stop_at: Annotated[Text | None, Query()] = None,
) -> PageOf[CommitRecord]:
    """Lists a commit and its ancestors, the newest first. With `limit` the list ends with this
    page."""
    found = served.repository(repository).commits.log(
        ref,
        first_parent=first_parent,
        after=paging.after or None,
        amount=paging.amount_and_one,
        since=since,
        stop_at=stop_at or None,  # lakeFS's command line sends an empty one
        paths=objects,
        prefixes=prefixes,
    )
    return paging.cut(found[: paging.amount] if limit else found, lambda each: each.commit_id)


@routes.add("POST", _BRANCH + "/revert", Role.WRITER, status=204)
def revert_branch(
    repository: Segment, branch: Segment, asked: RevertCreation, served: ServedDep
) -> Response:
    """Reverts the changes of a commit, in a new commit."""
    overrides = asked.commit_overrides or CommitOverrides()
    found = served.repository(repository)
    until_published(
        found.context,
        branch,
        lambda ref: found.commits.revert(
            branch,
            ref,
            parent_number=asked.parent_number or None,
            message=overrides.message or revert_message(asked.ref),
            metadata=overrides.metadata,
            committer=served.committer,
            allow_empty=asked.allow_empty,
        ),
        asked.ref,
    )
    return Response(status_code=204)


@routes.add("POST", _BRANCH + "/cherry-pick", Role.WRITER, status=201)
def cherry_pick(
    repository: Segment, branch: Segment, asked: CherryPickCreation, served: ServedDep
) -> CommitRecord:
    """Applies the changes of a commit to the branch, in a new commit."""
    overrides = asked.commit_overrides or CommitOverrides()
    found = served.repository(repository)
    return until_published(
        found.context,
        branch,
        lambda ref: found.commits.cherry_pick(
            branch,
            ref,
            parent_number=asked.parent_number,
            message=overrides.message,
            metadata=overrides.metadata,
            committer=served.committer,
        ),
        asked.ref,
    )


@routes.add("GET", _BRANCH + "/diff", Role.READER)
def diff_branch(
    repository: Segment,
    branch: Segment,
    paging: PagingDep,
    served: ServedDep,
    delimiter: DelimiterQuery = "",
) -> PageOf[DiffAnswer]:
    """Lists the staged changes of a branch."""
    page = served.repository(repository).commits.page_of_staged(
        branch,
        prefix=paging.prefix,
        delimiter=delimiter,
        after=paging.after,
        amount=paging.amount,
    )
    return diff_list(page, paging, staged=True)


@routes.add("GET", _REPOSITORY + "/refs/{left:segment}/diff/{right:segment}", Role.READER)
def diff_refs(
    repository: Segment,
    left: Segment,
    right: Segment,
    paging: PagingDep,
    served: ServedDep,
    delimiter: DelimiterQuery = "",
    type: Annotated[Literal["two_dot", "three_dot"], Query()] = "three_dot",
    include_right_stats: Annotated[bool, Query()] = False,
) -> PageOf[DiffAnswer]:
    """Lists the differences between two commits (`two_dot`); or the changes of the right commit
    since the newest common ancestor (`three_dot`)."""
    page = served.repository(repository).commits.page_of_diff(
        left,
        right,
        three_dot=type == "three_dot",
        prefix=paging.prefix,
        delimiter=delimiter,
        after=paging.after,
        amount=paging.amount,
    )
    return diff_list(page, paging, right_stats=include_right_stats)


@routes.add("POST", _MERGE, Role.WRITER)
def merge_into_branch(
    repository: Segment,
    source: Segment,
    destination: Segment,
    served: ServedDep,
    asked: Annotated[MergeCreation | None, Body()] = None,
) -> MergeAnswer:
    """Merges a reference into a branch."""
    asked = asked or MergeCreation()
    found = served.repository(repository)
    made = until_published(
        found.context,
        destination,
        lambda ref: found.commits.merge(
            ref,
            destination,
            message=asked.message or merge_message(source, destination),
            strategy=asked.strategy or None,
            metadata=asked.metadata,
            committer=served.committer,
            squash=asked.squash_merge,
            allow_empty=asked.allow_empty or asked.force,
        ),
        source,
    )
    return MergeAnswer(reference=made.commit_id)


@routes.add("GET", _MERGE, Role.READER)
def find_merge_base(
    repository: Segment, source: Segment, destination: Segment, served: ServedDep
) -> MergeBaseAnswer:
    """Returns the newest commit that is an ancestor of both references."""
    left, right, base = served.repository(repository).commits.merge_base(source, destination)
    return MergeBaseAnswer(source_commit_id=left, destination_commit_id=right, base_commit_id=base)


def diff_list(
    page: Page[Change], paging: Paging, *, right_stats: bool = False, staged: bool = False
) -> PageOf[DiffAnswer]:
    """Makes the answer for a page of differences."""
    changes = [
        DiffAnswer.of(change, right_stats=right_stats, staged=staged) for change in page.entries
    ]
    prefixes = map(DiffAnswer.of_prefix, page.common_prefixes)
    results = list(merge(changes, prefixes, key=attrgetter("path")))
    return PageOf(paging.pagination(len(results), page.next_after), results)
