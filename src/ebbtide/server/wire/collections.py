"""Collections, their versions and files."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from ebbtide.server.wire.base import Instant, Pagination, Text, Wire
from ebbtide.server.wire.objects import ObjectStats
from ebbtide.server.wire.projects import Properties
from ebbtide.store.collection_reading import Collection
from ebbtide.store.contents import ContentChange, FromCollection, FromRef, Located, Source
from ebbtide.store.locators import Signed
from ebbtide.store.metadata.collections import VersionRow


class RefSource(Wire):
    """The files of a commit below `prefix`, with `into` in place of it."""

    ref: Text
    prefix: Text = ""
    into: Text = ""


class CollectionSource(Wire):
    """The files of a collection, or of a version of it, below `prefix`, with `into` in place of
    it."""

    collection_id: Text
    version: int | None = None
    prefix: Text = ""
    into: Text = ""


class ContentSources(Wire):
    """Where files come from. Of two with one path that of a collection wins over that of a commit,
    and that of a locator over both."""

    from_ref: RefSource | None = None
    from_collection: CollectionSource | None = None
    locators: dict[Text, Text] | None = None

    def sources(self) -> list[Source]:
        """All that are given."""
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
    """A collection in a project; empty, or of what its sources have."""

    project_id: Text
    name: Text
    description: Text = ""
    properties: Properties = Field(default_factory=dict)
    replication_desired: int = 1
    expires_at: Instant | None = None
    ensure_unique_name: bool = False


class CollectionUpdate(ContentSources):
    """What to change: what is left out stays as it is, and an `expires_at` of null is never.

    The files of the sources are put over those that are there, less the `removed` paths, and
    prefixes that end in a slash; with `replaces` they take the place of all that is there.
    `keep_version` keeps what the collection is until now as a version.
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
        """The change of content; None where there is none."""
        sources = self.sources()
        if not sources and not self.removed and not self.replaces:
            return None
        return ContentChange(sources, self.removed, self.replaces)


class CollectionAnswer(Wire):
    """A collection. `state` goes by `ends_at`: the first of its own `expires_at` and those of the
    projects above it. `content_hash` depends on paths, sizes and checksums alone."""

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
        """As it is now; `repository` is the name."""
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
    """Collections, by name and id."""

    pagination: Pagination
    results: list[CollectionAnswer]


class FileAnswer(ObjectStats):
    """A file of a collection. Until `expires_at` its bytes are at `url`, without a key, and its
    `locator` can be made a file of a collection."""

    locator: str | None = None
    url: str | None = None
    expires_at: datetime | None = None

    @classmethod
    def signed(cls, found: Signed, root: str, locators_url: str) -> FileAnswer:
        """A file with its locator; `locators_url` is where the server reads locators."""
        return cls.of(found.entry, root).model_copy(
            update={
                "locator": found.locator,
                "url": found.url or f"{locators_url}/{found.locator}",
                "expires_at": found.expires_at,
            }
        )


class FileList(Wire):
    """Files and prefixes, by path."""

    pagination: Pagination
    results: list[FileAnswer]


class VersionAnswer(Wire):
    """What a collection was before an update, as far as versions keep it."""

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
        """One version."""
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
