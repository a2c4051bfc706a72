"""Repositories: create, list, read, delete and restore them, and their metadata."""

from __future__ import annotations

import re
from typing import Annotated, Final

from fastapi import Body, Query, Response
from pydantic import Field

from ebbtide.errors import InvalidInput
from ebbtide.server.api.answers import answers
from ebbtide.server.api.base import (
    ExpiryChange,
    Instant,
    Metadata,
    Restoration,
    Segment,
    Text,
    Wire,
    seconds_of,
)
from ebbtide.server.api.lists import ExpiredQuery, ListedDep, PageOf, PagingDep, next_after
from ebbtide.server.api.routes import Routes, require_addressable
from ebbtide.server.samples import add_samples
from ebbtide.server.serving import ServedDep
from ebbtide.store.access.access_keys import Role
from ebbtide.store.embedded import Store
from ebbtide.store.repositories.catalog import Catalogued
from ebbtide.text import shown


class RepositoryCreation(Wire):
    """A new repository. `storage_namespace` is a URL, or `local://PATH` for a place below the
    store's storage. Answers repeat it as it was written."""

    name: Text
    storage_namespace: Annotated[Text, Field(min_length=1)]
    storage_id: Text | None = None
    default_branch: Text | None = None
    sample_data: bool = False
    read_only: bool = False
    expires_at: Instant | None = None


@answers(Catalogued)
class RepositoryAnswer(Wire):
    """A repository, also by the names that clients of lakeFS have: `id` is its name, and
    `storage_namespace` its place as it was written."""

    id: str
    creation_date: int
    storage_namespace: str
    storage_id: str = ""
    read_only: bool = False

    @classmethod
    def of(cls, found: Catalogued) -> RepositoryAnswer:
        """Makes the fields of lakeFS for a repository."""
        info = found.info
        return cls(
            id=info.name,
            creation_date=seconds_of(info.created_at),
            storage_namespace=info.namespace or info.storage_url,
        )


class MetadataSet(Wire):
    """Metadata to add to a repository."""

    metadata: Metadata


class MetadataKeys(Wire):
    """Names to remove from the metadata of a repository."""

    keys: list[Text]


_PART: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}"
_LOCAL: Final = re.compile(rf"local://({_PART}(?:/{_PART}){{0,15}})/?")

routes = Routes("repositories")

_REPOSITORY: Final = "/repositories/{repository:segment}"


@routes.add("POST", "/repositories", Role.ADMIN, status=201)
def create_repository(
    asked: RepositoryCreation, served: ServedDep, bare: Annotated[bool, Query()] = False
) -> Catalogued:
    """Creates a repository. This needs an admin, because the request chooses where the server
    writes."""
    _require_supported(asked, bare=bare)
    require_addressable(asked.default_branch or "")
    made = served.store.create_repository(
        asked.name,
        storage_url=storage_url_of(asked.storage_namespace, served.store),
        default_branch=asked.default_branch or "main",
        expires_at=asked.expires_at,
        namespace=asked.storage_namespace,
    )
    if asked.sample_data:
        add_samples(made, committer=served.committer)
    return served.store.catalog.get(made.info.repository_id, include_expired=True)


@routes.add("GET", "/repositories", Role.NONE)
def list_repositories(
    paging: PagingDep,
    listed: ListedDep,
    served: ServedDep,
    search: Annotated[Text, Query()] = "",
) -> PageOf[Catalogued]:
    """Lists the repositories that the key may read, by name; with `search`, those whose names
    contain this text."""
    return paging.cut(
        served.store.catalog.page(
            prefix=paging.prefix,
            after=paging.after,
            amount=paging.amount_and_one,
            search=search,
            listed=listed,
            only=served.rights.readable_ids,
        ),
        lambda each: next_after(each.info.name, each.info.repository_id, listed),
    )


@routes.add("GET", _REPOSITORY, Role.READER)
def get_repository(
    repository: Segment, served: ServedDep, include_expired: ExpiredQuery = False
) -> Catalogued:
    """Returns one repository, by name or id."""
    name = served.catalogued(repository)
    return served.store.catalog.get(name, include_expired=include_expired)


@routes.add("DELETE", _REPOSITORY, Role.ADMIN, status=204)
def delete_repository(repository: Segment, served: ServedDep) -> Response:
    """Moves a repository to the trash."""
    served.store.catalog.delete(served.catalogued(repository))
    return Response(status_code=204)


@routes.add("PATCH", _REPOSITORY, Role.ADMIN)
def change_repository(repository: Segment, asked: ExpiryChange, served: ServedDep) -> Catalogued:
    """Sets when a repository expires. If it is in the trash, it is restored, unless the date is
    past."""
    return served.store.catalog.set_expiry(
        served.catalogued(repository), asked.expires_at, ensure_unique_name=asked.ensure_unique_name
    )


@routes.add("POST", _REPOSITORY + "/undelete", Role.ADMIN)
def restore_repository(
    repository: Segment,
    served: ServedDep,
    asked: Annotated[Restoration | None, Body()] = None,
) -> Catalogued:
    """Restores a repository from the trash. In lakeFS, `/restore` restores refs from a dump."""
    unique = asked is not None and asked.ensure_unique_name
    name = served.catalogued(repository)
    return served.store.catalog.restore(name, ensure_unique_name=unique)


@routes.add("GET", _REPOSITORY + "/metadata", Role.READER)
def get_metadata(repository: Segment, served: ServedDep) -> dict[str, str]:
    """Returns the metadata of a repository."""
    return served.store.catalog.metadata(served.catalogued(repository))


@routes.add("POST", _REPOSITORY + "/metadata", Role.ADMIN, status=204)
def set_metadata(repository: Segment, asked: MetadataSet, served: ServedDep) -> Response:
    """Adds or replaces metadata of a repository. Other names stay."""
    served.store.catalog.change_metadata(served.catalogued(repository), added=asked.metadata)
    return Response(status_code=204)


@routes.add("DELETE", _REPOSITORY + "/metadata", Role.ADMIN, status=204)
def delete_metadata(repository: Segment, asked: MetadataKeys, served: ServedDep) -> Response:
    """Removes names from the metadata of a repository."""
    served.store.catalog.change_metadata(served.catalogued(repository), removed=asked.keys)
    return Response(status_code=204)


def _require_supported(asked: RepositoryCreation, *, bare: bool) -> None:
    """Raises InvalidInput `invalid_argument` for an option that would mean another repository than
    the one that is made."""
    unsupported = {
        "bare": (bare, "make the repository without it, and upload or import the data"),
        "read_only": (asked.read_only, "leave it out, and give users keys with the role reader"),
        "storage_id": (asked.storage_id, "leave it out, and name the place in storage_namespace"),
    }
    for option, (is_given, advice) in unsupported.items():
        if is_given:
            raise InvalidInput("invalid_argument", f"{option} is not supported: {advice}")


def storage_url_of(place: str, store: Store) -> str:
    """Returns the URL of a storage root. `local://PATH` is a place below the store's own storage.
    PATH has at most 16 parts.

    Raises InvalidInput `invalid_argument`.
    """
    match = _LOCAL.fullmatch(place)
    if match is not None:
        return store.default_root(match[1])
    if not re.match(r"(file|s3|s3a|gs|az)://", place):
        raise InvalidInput(
            "invalid_argument",
            f"{shown(place)} is not a storage location for a repository: write local://NAME or "
            "local://FOLDER/NAME, or a URL such as s3://bucket/prefix or file:///directory",
        )
    return place
