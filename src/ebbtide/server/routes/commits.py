"""Commits: make one, read one, and read the log."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Final

from fastapi import Query

from ebbtide.errors import InvalidInput
from ebbtide.model import EPOCH
from ebbtide.server.paging import PagingDep
from ebbtide.server.routing import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.server.wire.base import Segment, Text
from ebbtide.server.wire.commits import CommitAnswer, CommitCreation, CommitList
from ebbtide.store.access.keys import Role

routes = Routes("commits")

FILTERS_MAX: Final = 100
_REPOSITORY: Final = "/repositories/{repository:segment}"


@routes.add("POST", _REPOSITORY + "/branches/{branch:segment}/commits", Role.WRITER, status=201)
def commit(
    repository: Segment,
    branch: Segment,
    asked: CommitCreation,
    served: ServedDep,
    source_metarange: Annotated[Text | None, Query()] = None,
) -> CommitAnswer:
    """Commits the staged changes of a branch."""
    if source_metarange:
        raise InvalidInput(
            "invalid_argument",
            "source_metarange is not supported: a commit contains the staged changes",
        )
    made = served.repository(repository).commits.commit(
        branch,
        asked.message,
        metadata=asked.metadata,
        date=None if asked.date is None else EPOCH + timedelta(seconds=asked.date),
        date_precision=timedelta(seconds=1),
        committer=served.committer,
        allow_empty=asked.allow_empty,
    )
    return CommitAnswer.of(made)


@routes.add("GET", _REPOSITORY + "/commits/{commit_id:segment}", Role.READER)
def get_commit(repository: Segment, commit_id: Segment, served: ServedDep) -> CommitAnswer:
    """Returns the commit of an id, or of any other reference."""
    return CommitAnswer.of(served.repository(repository).commits.get(commit_id))


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
) -> CommitList:
    """Lists a commit and its ancestors, the newest first. With `limit` the list ends with this
    page."""
    page, more = paging.cut(
        served.repository(repository).commits.log(
            ref,
            first_parent=first_parent,
            after=paging.after or None,
            amount=paging.amount_and_one,
            since=since,
            stop_at=stop_at,
            paths=objects,
            prefixes=prefixes,
        )
    )
    last = page[-1].commit_id if more and not limit else None
    return CommitList(
        pagination=paging.pagination(len(page), last),
        results=[CommitAnswer.of(record) for record in page],
    )
