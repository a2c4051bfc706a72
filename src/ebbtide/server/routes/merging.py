"""Differences between references, and merges."""

from __future__ import annotations

from heapq import merge
from operator import attrgetter
from typing import Annotated, Final, Literal

from fastapi import Body, Query

from ebbtide.server.paging import Paging, PagingDep
from ebbtide.server.routing import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.server.wire.base import Segment, Text
from ebbtide.server.wire.commits import DiffAnswer, DiffList
from ebbtide.server.wire.refs import MergeAnswer, MergeBaseAnswer, MergeCreation
from ebbtide.store.access.keys import Role
from ebbtide.store.content.diffing import Change
from ebbtide.store.listing import Page

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
    return diff_list(page, paging)


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
    made = served.repository(repository).commits.merge(
        source,
        destination,
        message=asked.message or None,
        strategy=asked.strategy or None,
        metadata=asked.metadata,
        committer=served.committer,
        squash=asked.squash_merge,
        allow_empty=asked.allow_empty,
    )
    return MergeAnswer(reference=made.commit_id)


@routes.add("GET", _MERGE, Role.READER)
def find_merge_base(
    repository: Segment, source: Segment, destination: Segment, served: ServedDep
) -> MergeBaseAnswer:
    """Returns the newest commit that is an ancestor of both references."""
    left, right, base = served.repository(repository).commits.merge_base(source, destination)
    return MergeBaseAnswer(source_commit_id=left, destination_commit_id=right, base_commit_id=base)


def diff_list(page: Page[Change], paging: Paging, *, right_stats: bool = False) -> DiffList:
    """Makes the answer for a page of differences."""
    changes = [DiffAnswer.of(change, right_stats=right_stats) for change in page.entries]
    prefixes = map(DiffAnswer.of_prefix, page.common_prefixes)
    results = list(merge(changes, prefixes, key=attrgetter("path")))
    return DiffList(pagination=paging.pagination(len(results), page.next_after), results=results)
