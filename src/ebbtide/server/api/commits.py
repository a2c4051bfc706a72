"""Commits: make one, read one, and read the log."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Final

from fastapi import Query

from ebbtide.errors import InvalidInput
from ebbtide.model import EPOCH
from ebbtide.server.api.base import Metadata, Pagination, Seconds, Segment, Text, Wire, seconds_of
from ebbtide.server.api.paging import PagingDep
from ebbtide.server.api.routing import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.store.access.access_keys import Role
from ebbtide.store.commits.publication import until_published
from ebbtide.store.database.commit_rows import CommitRecord


class CommitCreation(Wire):
    """A new commit. `date` gives it an earlier date, as for the commits of an imported history."""

    message: Text
    metadata: Metadata | None = None
    date: Seconds | None = None
    allow_empty: bool = False


class CommitAnswer(Wire):
    """A commit. `meta_range_id` is empty if the commit was forgotten."""

    id: str
    parents: list[str]
    committer: str
    message: str
    creation_date: int
    meta_range_id: str
    metadata: dict[str, str]

    @classmethod
    def of(cls, record: CommitRecord) -> CommitAnswer:
        """Makes the answer for a commit's record."""
        return cls(
            id=record.commit_id,
            parents=list(record.parent_ids),
            committer=record.committer,
            message=record.message,
            creation_date=seconds_of(record.created_at),
            meta_range_id=record.tree_id or "",
            metadata=dict(record.metadata),
        )


class CommitList(Wire):
    """Commits, the newest first."""

    pagination: Pagination
    results: list[CommitAnswer]


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
    found = served.repository(repository)
    made = until_published(
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
            stop_at=stop_at or None,  # lakeFS's command line sends an empty one
            paths=objects,
            prefixes=prefixes,
        )
    )
    last = page[-1].commit_id if more and not limit else None
    return CommitList(
        pagination=paging.pagination(len(page), last),
        results=[CommitAnswer.of(record) for record in page],
    )
