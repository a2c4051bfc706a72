"""Repositories: made, listed, looked at, trashed, brought back."""

from __future__ import annotations

import re
from typing import Annotated, Final

from fastapi import Body, Query, Response

from ebbtide.errors import InvalidInput
from ebbtide.server.lifecycle import ExpiredQuery, ListedDep, next_after
from ebbtide.server.paging import PagingDep
from ebbtide.server.routing import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.server.wire.base import ExpiryChange, Restoration, Segment, Text
from ebbtide.server.wire.repositories import (
    RepositoryAnswer,
    RepositoryCreation,
    RepositoryList,
)
from ebbtide.store.keys import Role

routes = Routes("repositories")

_REPOSITORY: Final = "/repositories/{repository:segment}"
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
        expires_at=asked.expires_at,
    )
    found = served.store.catalog.get(made.info.repository_id, include_expired=True)
    return RepositoryAnswer.of(found)


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
    paging: PagingDep,
    listed: ListedDep,
    served: ServedDep,
    search: Annotated[Text, Query()] = "",
) -> RepositoryList:
    """Repositories by name; those whose names hold `search`."""
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
    """One repository, by name or id."""
    found = served.store.catalog.get(repository, include_expired=include_expired)
    return RepositoryAnswer.of(found)


@routes.add("DELETE", _REPOSITORY, Role.ADMIN, status=204)
def delete_repository(repository: Segment, served: ServedDep) -> Response:
    """Put a repository in the trash."""
    served.store.catalog.delete(repository)
    return Response(status_code=204)


@routes.add("PATCH", _REPOSITORY, Role.ADMIN)
def change_repository(
    repository: Segment, asked: ExpiryChange, served: ServedDep
) -> RepositoryAnswer:
    """Say when it expires; what is in the trash comes back, unless that is past."""
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
    """Bring a repository back from the trash."""
    unique = asked is not None and asked.ensure_unique_name
    restored = served.store.catalog.restore(repository, ensure_unique_name=unique)
    return RepositoryAnswer.of(restored)


@routes.add("GET", _REPOSITORY + "/metadata", Role.READER)
def get_metadata(repository: Segment, served: ServedDep) -> dict[str, str]:
    """What is attached to a repository: nothing can be."""
    served.repository(repository)
    return {}
