"""Repositories: create, list, read, delete and restore."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Body, Query, Response

from ebbtide.errors import InvalidInput
from ebbtide.server.lifecycle import ExpiredQuery, ListedDep, next_after
from ebbtide.server.paging import PagingDep
from ebbtide.server.placing import storage_url_of
from ebbtide.server.routing import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.server.wire.base import ExpiryChange, Restoration, Segment, Text
from ebbtide.server.wire.repositories import (
    RepositoryAnswer,
    RepositoryCreation,
    RepositoryList,
)
from ebbtide.store.access.keys import Role

routes = Routes("repositories")

_REPOSITORY: Final = "/repositories/{repository:segment}"


@routes.add("POST", "/repositories", Role.ADMIN, status=201)
def create_repository(asked: RepositoryCreation, served: ServedDep) -> RepositoryAnswer:
    """Creates a repository. This needs an admin, because the request chooses where the server
    writes."""
    if asked.sample_data or asked.read_only:
        raise InvalidInput(
            "invalid_argument", "sample_data and read_only are not supported: leave them out"
        )
    made = served.store.create_repository(
        asked.name,
        storage_url=storage_url_of(asked.storage_namespace, served.store),
        default_branch=asked.default_branch or "main",
        expires_at=asked.expires_at,
    )
    found = served.store.catalog.get(made.info.repository_id, include_expired=True)
    return RepositoryAnswer.of(found)


@routes.add("GET", "/repositories", Role.READER)
def list_repositories(
    paging: PagingDep,
    listed: ListedDep,
    served: ServedDep,
    search: Annotated[Text, Query()] = "",
) -> RepositoryList:
    """Lists repositories by name; with `search`, those whose names contain this text."""
    page, more = paging.cut(
        served.store.catalog.page(
            prefix=paging.prefix,
            after=paging.after,
            amount=paging.amount_and_one,
            search=search,
            listed=listed,
        )
    )
    last = None
    if more:
        info = page[-1].info
        last = next_after(info.name, info.repository_id, listed)
    return RepositoryList(
        pagination=paging.pagination(len(page), last),
        results=[RepositoryAnswer.of(found) for found in page],
    )


@routes.add("GET", _REPOSITORY, Role.READER)
def get_repository(
    repository: Segment, served: ServedDep, include_expired: ExpiredQuery = False
) -> RepositoryAnswer:
    """Returns one repository, by name or id."""
    found = served.store.catalog.get(repository, include_expired=include_expired)
    return RepositoryAnswer.of(found)


@routes.add("DELETE", _REPOSITORY, Role.ADMIN, status=204)
def delete_repository(repository: Segment, served: ServedDep) -> Response:
    """Moves a repository to the trash."""
    served.store.catalog.delete(repository)
    return Response(status_code=204)


@routes.add("PATCH", _REPOSITORY, Role.ADMIN)
def change_repository(
    repository: Segment, asked: ExpiryChange, served: ServedDep
) -> RepositoryAnswer:
    """Sets when a repository expires. One in the trash is restored, unless the date is past."""
    changed = served.store.catalog.set_expiry(
        repository, asked.expires_at, ensure_unique_name=asked.ensure_unique_name
    )
    return RepositoryAnswer.of(changed)


@routes.add("POST", _REPOSITORY + "/restore", Role.ADMIN)
def restore_repository(
    repository: Segment,
    served: ServedDep,
    asked: Annotated[Restoration | None, Body()] = None,
) -> RepositoryAnswer:
    """Restores a repository from the trash."""
    unique = asked is not None and asked.ensure_unique_name
    restored = served.store.catalog.restore(repository, ensure_unique_name=unique)
    return RepositoryAnswer.of(restored)


@routes.add("GET", _REPOSITORY + "/metadata", Role.READER)
def get_metadata(repository: Segment, served: ServedDep) -> dict[str, str]:
    """Returns the metadata of a repository, which is always empty."""
    served.repository(repository)
    return {}
