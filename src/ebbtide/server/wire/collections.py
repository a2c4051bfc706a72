"""Collections, their versions and their files."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from ebbtide.server.wire.base import Instant, Pagination, Text, Wire
from ebbtide.server.wire.objects import ObjectStats
from ebbtide.server.wire.projects import Properties
from ebbtide.store.collections.contents import (
    ContentChange,
    FromCollection,
    FromRef,
    Located,
    Source,
)
from ebbtide.store.collections.queries import VersionRow
from ebbtide.store.collections.reading import Collection
from ebbtide.store.objects.locators import Signed


class RefSource(Wire):
    """The files of a commit whose paths begin with `prefix`. In the collection `into` replaces the
    prefix."""

    ref: Text
    prefix: Text = ""
    into: Text = ""


class CollectionSource(Wire):
    """The files of a collection, or of one of its versions, whose paths begin with `prefix`. In the
    new content `into` replaces the prefix."""

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
    `removed` are deleted; a path that ends in a slash is a prefix. With `replaces` the sources'
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
        """Makes the answer for a file with its locator. `locators_url` is where the server reads
        locators."""
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
