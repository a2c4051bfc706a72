"""Differences between references, and merges."""

from __future__ import annotations

from heapq import merge
from operator import attrgetter
from typing import Annotated, Final, Literal

from fastapi import Body, Query

from ebbtide.server.api.base import (
    OCTETS,
    Metadata,
    Pagination,
    Segment,
    Text,
    Wire,
    seconds_of,
)
from ebbtide.server.api.paging import Paging, PagingDep
from ebbtide.server.api.routing import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.store.access.access_keys import Role
from ebbtide.store.commits.merges import merge_message
from ebbtide.store.commits.publication import until_published
from ebbtide.store.content.differences import Change
from ebbtide.store.content.entries import without_checksums
from ebbtide.store.page import Page


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


class DiffList(Wire):
    """Differences, sorted by path."""

    pagination: Pagination
    results: list[DiffAnswer]


routes = Routes("refs")

DelimiterQuery = Annotated[Text, Query()]

_REPOSITORY: Final = "/repositories/{repository:segment}"
_MERGE: Final = _REPOSITORY + "/refs/{source:segment}/merge/{destination:segment}"


@routes.add("GET", _REPOSITORY + "/branches/{branch:segment}/diff", Role.READER)
def diff_branch(
    repository: Segment,
    branch: Segment,
    paging: PagingDep,
    served: ServedDep,
    delimiter: DelimiterQuery = "",
) -> DiffList:
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
) -> DiffList:
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
) -> DiffList:
    """Makes the answer for a page of differences."""
    changes = [
        DiffAnswer.of(change, right_stats=right_stats, staged=staged) for change in page.entries
    ]
    prefixes = map(DiffAnswer.of_prefix, page.common_prefixes)
    results = list(merge(changes, prefixes, key=attrgetter("path")))
    return DiffList(pagination=paging.pagination(len(results), page.next_after), results=results)
