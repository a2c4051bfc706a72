"""Collections: create, find, change, delete and restore. lakeFS has no such routes.

Not for: their files (`collected_files`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import Body, Query, Response
from pydantic import Field

from ebbtide.errors import InvalidInput
from ebbtide.server.api.base import Instant, Pagination, Restoration, Segment, Text, Wire
from ebbtide.server.api.lifecycle import ExpiredQuery, ListedDep
from ebbtide.server.api.objects import ObjectStats
from ebbtide.server.api.paging import Paging, PagingDep, item_place
from ebbtide.server.api.projects import Properties, given_in
from ebbtide.server.api.routing import Routes
from ebbtide.server.serving import Served, ServedDep
from ebbtide.store.access.access_keys import Role
from ebbtide.store.collections.contents import (
    ContentChange,
    FromCollection,
    FromRef,
    Located,
    Source,
)
from ebbtide.store.collections.queries import VersionRow
from ebbtide.store.collections.reading import Collection
from ebbtide.store.lifecycle import ListFilter
from ebbtide.store.objects.locators import Signed


class RefSource(Wire):
    """The files of a commit whose paths begin with `prefix`. In the collection, `into` replaces
    the prefix of each path."""

    ref: Text
    prefix: Text = ""
    into: Text = ""


class CollectionSource(Wire):
    """The files of a collection, or of one of its versions, whose paths begin with `prefix`. In the
    new content, `into` replaces the prefix of each path."""

    collection_id: Text
    version: int | None = None
    prefix: Text = ""
    into: Text = ""


class ContentSources(Wire):
    """The sources of files. If two sources have the same path, a collection's file replaces a
    commit's, and a locator's replaces both."""

    from_ref: RefSource | None = None
    from_collection: CollectionSource | None = None
    locators: dict[Text, Text] | None = None

    def sources(self) -> list[Source]:
        """Returns all sources of the request, in the order of the fields."""
        found: list[Source] = []
        if self.from_ref is not None:
            found.append(FromRef(self.from_ref.ref, self.from_ref.prefix, self.from_ref.into))
        if self.from_collection is not None:
            other = self.from_collection
            found.append(
                FromCollection(other.collection_id, other.version, other.prefix, other.into)
            )
        if self.locators is not None:
            found.append(Located(self.locators))
        return found


class CollectionCreation(ContentSources):
    """A new collection in a project: empty, or with the files of its sources."""

    project_id: Text
    name: Text
    description: Text = ""
    properties: Properties = Field(default_factory=dict)
    replication_desired: int = 1
    expires_at: Instant | None = None
    ensure_unique_name: bool = False


class CollectionUpdate(ContentSources):
    """A change of a collection. A field that is left out stays as it is. An `expires_at` of null
    means never.

    The files of the sources are added, and replace present files with the same path. The paths in
    `removed` are deleted; a path that ends in a slash is a prefix. With `replaces`, the sources'
    files replace all present files. `keep_version` keeps the present state of the collection as a
    version.
    """

    project_id: Text = ""
    name: Text = ""
    description: Text = ""
    properties: Properties = Field(default_factory=dict)
    replication_desired: int = 1
    expires_at: Instant | None = None
    removed: list[Text] = Field(default_factory=list)
    replaces: bool = False
    keep_version: bool = False
    ensure_unique_name: bool = False

    def content(self) -> ContentChange | None:
        """Returns the change of the content; None if the content does not change."""
        sources = self.sources()
        if not sources and not self.removed and not self.replaces:
            return None
        return ContentChange(sources, self.removed, self.replaces)


class CollectionAnswer(Wire):
    """A collection. `state` depends on `ends_at`: the earliest `expires_at` of the collection and
    of the projects above it. `content_hash` depends only on paths, sizes and checksums."""

    id: str
    repository: str
    project_id: str
    name: str
    path: str
    description: str
    properties: dict[str, Any]
    version: int
    content_hash: str
    file_count: int
    size_bytes: int
    replication_desired: int
    created_at: datetime
    modified_at: datetime
    expires_at: datetime | None = None
    ends_at: datetime | None = None
    state: str

    @classmethod
    def of(cls, found: Collection, repository: str) -> CollectionAnswer:
        """Makes the answer for a collection; `repository` is the name of its repository."""
        return cls(
            id=found.collection_id,
            repository=repository,
            project_id=found.project_id,
            name=found.name,
            path=found.path,
            description=found.description,
            properties=dict(found.properties),
            version=found.version,
            content_hash=found.content_hash,
            file_count=found.file_count,
            size_bytes=found.size_bytes,
            replication_desired=found.replication_desired,
            created_at=found.created_at,
            modified_at=found.modified_at,
            expires_at=found.expires_at,
            ends_at=found.ends_at,
            state=found.state.value,
        )


class CollectionList(Wire):
    """Collections, sorted by name and id."""

    pagination: Pagination
    results: list[CollectionAnswer]


class FileAnswer(ObjectStats):
    """A file of a collection, with a locator if the request asks for one.

    Until `expires_at` its bytes can be read at `url` without an access key, and new content of
    collections can be made with `locator`.
    """

    locator: str | None = None
    url: str | None = None
    expires_at: datetime | None = None

    @classmethod
    def signed(cls, found: Signed, root: str, locators_url: str) -> FileAnswer:
        """Makes the answer for a file with its locator. Clients read locators below
        `locators_url`."""
        return cls.of(found.entry, root).model_copy(
            update={
                "locator": found.locator,
                "url": found.url or f"{locators_url}/{found.locator}",
                "expires_at": found.expires_at,
            }
        )


class FileList(Wire):
    """Files and prefixes, sorted by path."""

    pagination: Pagination
    results: list[FileAnswer]


class VersionAnswer(Wire):
    """An earlier state of a collection, with the fields that versions keep."""

    version: int
    name: str
    description: str
    properties: dict[str, Any]
    content_hash: str
    file_count: int
    size_bytes: int
    modified_at: datetime

    @classmethod
    def of(cls, row: VersionRow) -> VersionAnswer:
        """Makes the answer for a version."""
        return cls(
            version=row.version,
            name=row.name,
            description=row.description,
            properties=dict(row.properties),
            content_hash=row.content_hash,
            file_count=row.file_count,
            size_bytes=row.size_bytes,
            modified_at=row.modified_at,
        )


class VersionList(Wire):
    """The versions that are kept, the newest first."""

    pagination: Pagination
    results: list[VersionAnswer]


routes = Routes("collections")

VERSION_MAX: Final = 2**53
_COLLECTION: Final = "/collections/{collection_id:segment}"
_OF_CONTENT: Final = {*ContentSources.model_fields, "removed", "replaces"}


@routes.add("POST", "/collections", Role.WRITER, status=201, anywhere=True)
def create_collection(asked: CollectionCreation, served: ServedDep) -> CollectionAnswer:
    """Creates a collection: empty, or with the files of its sources. No bytes are copied."""
    served.rights.require(Role.WRITER, {"project_id": asked.project_id})
    found = served.store.repository_of_project(asked.project_id)
    made = found.collections.create(
        asked.project_id,
        asked.name,
        ContentChange(asked.sources()),
        description=asked.description,
        properties=asked.properties,
        replication_desired=asked.replication_desired,
        expires_at=asked.expires_at,
        ensure_unique_name=asked.ensure_unique_name,
    )
    return CollectionAnswer.of(made, found.info.name)


@routes.add("GET", "/collections", Role.READER, anywhere=True)
def list_collections(
    paging: PagingDep,
    listed: ListedDep,
    served: ServedDep,
    project_id: Annotated[Text | None, Query()] = None,
    name: Annotated[Text | None, Query()] = None,
    repository: Annotated[Text | None, Query()] = None,
    path: Annotated[Text | None, Query()] = None,
    content_hash: Annotated[Text | None, Query()] = None,
) -> CollectionList:
    """Lists the collections in a project by name; or returns the one collection of a repository at
    a path, or with a content hash.

    If several collections have the content hash, a persistent one is preferred to an expiring one,
    and both to one in the trash.
    """
    if project_id is not None and repository is path is content_hash is None:
        return _in_project(project_id, name, paging, listed, served)
    if project_id is not None or repository is None or (path is None) == (content_hash is None):
        raise InvalidInput(
            "invalid_argument",
            "give either project_id, or repository with one of path and content_hash",
        )
    served.rights.require(Role.READER, {"repository": repository})
    collections = served.repository(repository).collections
    if path is not None:
        found = collections.find(path, include_expired=listed.include_expired)
    else:
        assert content_hash is not None  # either the path or the hash is given
        found = collections.by_hash(content_hash, include_expired=listed.include_expired)
    return CollectionList(
        pagination=paging.pagination(1, None), results=[CollectionAnswer.of(found, repository)]
    )


def _in_project(
    project_id: str, name: str | None, paging: Paging, listed: ListFilter, served: Served
) -> CollectionList:
    served.rights.require(Role.READER, {"project_id": project_id})
    found = served.store.repository_of_project(project_id)
    page, more = paging.cut(
        found.collections.page(
            project_id,
            listed=listed,
            prefix=paging.prefix,
            name=name,
            after=paging.after_item,
            amount=paging.amount_and_one,
        )
    )
    last = item_place(page[-1].name, page[-1].collection_id) if more else None
    return CollectionList(
        pagination=paging.pagination(len(page), last),
        results=[CollectionAnswer.of(each, found.info.name) for each in page],
    )


@routes.add("GET", _COLLECTION, Role.READER)
def get_collection(
    collection_id: Segment, served: ServedDep, include_expired: ExpiredQuery = False
) -> CollectionAnswer:
    """Returns one collection."""
    found = served.store.repository_of_collection(collection_id)
    collection = found.collections.get(collection_id, include_expired=include_expired)
    return CollectionAnswer.of(collection, found.info.name)


@routes.add("PATCH", _COLLECTION, Role.WRITER)
def update_collection(
    collection_id: Segment, asked: CollectionUpdate, served: ServedDep
) -> CollectionAnswer:
    """Changes the given fields. If the collection is in the trash, only `expires_at` can be
    changed, which restores the collection."""
    found = served.store.repository_of_collection(collection_id)
    given = {name: value for name, value in given_in(asked).items() if name not in _OF_CONTENT}
    changed = found.collections.update(collection_id, asked.content(), **given)
    return CollectionAnswer.of(changed, found.info.name)


@routes.add("DELETE", _COLLECTION, Role.WRITER, status=204)
def delete_collection(collection_id: Segment, served: ServedDep) -> Response:
    """Moves a collection to the trash."""
    served.store.repository_of_collection(collection_id).collections.delete(collection_id)
    return Response(status_code=204)


@routes.add("POST", _COLLECTION + "/restore", Role.WRITER)
def restore_collection(
    collection_id: Segment,
    served: ServedDep,
    asked: Annotated[Restoration | None, Body()] = None,
) -> CollectionAnswer:
    """Restores a collection from the trash."""
    found = served.store.repository_of_collection(collection_id)
    unique = asked is not None and asked.ensure_unique_name
    restored = found.collections.restore(collection_id, ensure_unique_name=unique)
    return CollectionAnswer.of(restored, found.info.name)


@routes.add("GET", _COLLECTION + "/versions", Role.READER)
def list_versions(
    collection_id: Segment,
    served: ServedDep,
    paging: PagingDep,
    before: Annotated[int | None, Query(ge=0, le=VERSION_MAX)] = None,
) -> VersionList:
    """Lists the earlier versions that are kept, the newest first."""
    page, more = paging.cut(
        served.store.repository_of_collection(collection_id).collections.versions(
            collection_id, before=before, amount=paging.amount_and_one
        )
    )
    return VersionList(
        pagination=paging.pagination(len(page), str(page[-1].version) if more else None),
        results=[VersionAnswer.of(row) for row in page],
    )


@routes.add("DELETE", _COLLECTION + "/versions/{version}", Role.WRITER, status=204)
def delete_version(collection_id: Segment, version: int, served: ServedDep) -> Response:
    """Drops an earlier version. Locators of its files stay valid until they expire."""
    found = served.store.repository_of_collection(collection_id)
    found.collections.drop_version(collection_id, version)
    return Response(status_code=204)
