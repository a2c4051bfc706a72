"""Repositories: made, listed, looked at, forgotten."""

from __future__ import annotations

import re
from typing import Annotated, Final

from fastapi import Query, Response

from ebbtide.errors import InvalidInput
from ebbtide.server.paging import PagingDep
from ebbtide.server.routing import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.server.wire.base import Segment, Text
from ebbtide.server.wire.repositories import (
    RepositoryAnswer,
    RepositoryCreation,
    RepositoryList,
)
from ebbtide.store.keys import Role

routes = Routes("repositories")

_LOCAL: Final = re.compile(r"local://([A-Za-z0-9_][A-Za-z0-9_.-]{0,254})/?")


@routes.add("POST", "/repositories", Role.ADMIN, status=201)
def create_repository(asked: RepositoryCreation, served: ServedDep) -> RepositoryAnswer:
    """Make a repository. Admins alone: its place is one that the server writes to."""
    if asked.sample_data or asked.read_only:
        raise InvalidInput(
            "invalid_argument", "repositories with samples, or to read alone, are not made here"
        )
    made = served.store.create_repository(
        asked.name,
        storage_url=_storage_url(asked.storage_namespace, served),
        default_branch=asked.default_branch or "main",
    )
    return RepositoryAnswer.of(made.info)


def _storage_url(namespace: str, served: ServedDep) -> str:
    match = _LOCAL.fullmatch(namespace)
    if match is not None:
        return served.store.default_root(match[1])
    if not re.match(r"(file|s3|s3a|gs|az)://", namespace):
        raise InvalidInput(
            "invalid_argument",
            f"{namespace[:100]!r} is no place for a repository: write local://NAME, or a URL such "
            "as s3://bucket/prefix or file:///directory",
        )
    return namespace


@routes.add("GET", "/repositories", Role.READER)
def list_repositories(
    paging: PagingDep, served: ServedDep, search: Annotated[Text, Query()] = ""
) -> RepositoryList:
    """Repositories by name; those whose names hold `search`."""
    page, more = paging.cut(
        served.store.page_of_repositories(
            prefix=paging.prefix,
            after=paging.after,
            amount=paging.amount_and_one,
            search=search,
        )
    )
    return RepositoryList(
        pagination=paging.pagination(len(page), page[-1].name if more else None),
        results=[RepositoryAnswer.of(info) for info in page],
    )


@routes.add("GET", "/repositories/{repository:segment}", Role.READER)
def get_repository(repository: Segment, served: ServedDep) -> RepositoryAnswer:
    """One repository."""
    return RepositoryAnswer.of(served.repository(repository).info)


@routes.add("DELETE", "/repositories/{repository:segment}", Role.ADMIN, status=204)
def delete_repository(repository: Segment, served: ServedDep) -> Response:
    """Forget a repository. Its files stay where they are."""
    served.store.delete_repository(repository)
    return Response(status_code=204)


@routes.add("GET", "/repositories/{repository:segment}/metadata", Role.READER)
def get_metadata(repository: Segment, served: ServedDep) -> dict[str, str]:
    """What is attached to a repository: nothing can be."""
    served.repository(repository)
    return {}
