"""Projects and the collections in them: create, find, change, delete and restore.

lakeFS has no such routes. Not for: the files of collections (`collected_files`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Self

from fastapi import Body, Path, Query, Response
from pydantic import Field

from ebbtide.errors import InvalidInput
from ebbtide.server.api.answers import answers
from ebbtide.server.api.base import Instant, Restoration, Segment, Text, Wire
from ebbtide.server.api.lists import (
    ExpiredQuery,
    ListedDep,
    PageOf,
    Paging,
    PagingDep,
    item_place,
)
from ebbtide.server.api.routes import Routes
from ebbtide.server.serving import Served, ServedDep
from ebbtide.store.access.access_keys import Role
from ebbtide.store.collections.contents import (
    ContentChange,
    FromCollection,
    FromRef,
    Located,
    Source,
)
from ebbtide.store.collections.items import Items
from ebbtide.store.collections.projects import Project
from ebbtide.store.collections.queries import VersionRow
from ebbtide.store.collections.reading import Collection
from ebbtide.store.lifecycle import ListFilter

Properties = dict[Text, Any]
"""JSON values that users attach freely."""


class ProjectCreation(Wire):
    """A new project in a repository, or within another project."""

    repository: Text
    name: Text
    parent_id: Text | None = None
    description: Text = ""
    properties: Properties = Field(default_factory=dict)
    expires_at: Instant | None = None
    ensure_unique_name: bool = False


class ProjectUpdate(Wire):
    """A change of a project. A field that is left out stays as it is. A `parent_id` of null means
    no parent, an `expires_at` of null means never."""

    name: Text = ""
    parent_id: Text | None = None
    description: Text = ""
    properties: Properties = Field(default_factory=dict)
    expires_at: Instant | None = None
    ensure_unique_name: bool = False


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


class _Item(Wire):
    id: str

    @classmethod
    def of(cls, found: Project | Collection) -> Self:
        """Makes the id under the name that it had at first."""
        return cls(id=found.project_id if isinstance(found, Project) else found.collection_id)


@answers(Project)
class ProjectAnswer(_Item):
    """A project. `id` is its `project_id` too. `state` depends on `ends_at`: the earliest
    `expires_at` of the project and of the projects above it."""


@answers(Collection)
class CollectionAnswer(_Item):
    """A collection. `id` is its `collection_id` too. `state` depends on `ends_at`: the earliest
    `expires_at` of the collection and of the projects above it. `content_hash` depends only on
    paths, sizes and checksums."""


routes = Routes("collections")

VERSION_MAX: Final = 2**53
_PROJECT: Final = "/projects/{project_id:segment}"
_COLLECTION: Final = "/collections/{collection_id:segment}"
_OF_CONTENT: Final = {*ContentSources.model_fields, "removed", "replaces"}


def _projects(served: Served, item_id: str) -> Items[Any, Project]:
    return served.store.repository_of_project(item_id).projects


def _collections(served: Served, item_id: str) -> Items[Any, Collection]:
    return served.store.repository_of_collection(item_id).collections


def _add_item_routes(
    path: str, thing: type, items_of: Callable[[Served, str], Items[Any, Any]]
) -> None:
    """Adds the routes that projects and collections have in common. `items_of` returns the items of
    the repository that has an id."""
    id_path = Path(alias=path.partition("{")[2].partition(":")[0])

    def get_item(
        served: ServedDep, item_id: Text = id_path, include_expired: ExpiredQuery = False
    ) -> Any:
        """Returns one project or collection."""
        return items_of(served, item_id).get(item_id, include_expired=include_expired)

    def delete_item(served: ServedDep, item_id: Text = id_path) -> Response:
        """Moves a project or collection to the trash; a project with everything in it."""
        items_of(served, item_id).delete(item_id)
        return Response(status_code=204)

    def restore_item(
        served: ServedDep,
        item_id: Text = id_path,
        asked: Annotated[Restoration | None, Body()] = None,
    ) -> Any:
        """Restores a project or collection from the trash; a project with everything in it."""
        unique = asked is not None and asked.ensure_unique_name
        return items_of(served, item_id).restore(item_id, ensure_unique_name=unique)

    routes.add("GET", path, Role.READER, returns=thing)(get_item)
    routes.add("DELETE", path, Role.WRITER, status=204)(delete_item)
    routes.add("POST", path + "/restore", Role.WRITER, returns=thing)(restore_item)


_add_item_routes(_PROJECT, Project, _projects)
_add_item_routes(_COLLECTION, Collection, _collections)


@routes.add("POST", "/projects", Role.WRITER, status=201, anywhere=True)
def create_project(asked: ProjectCreation, served: ServedDep) -> Project:
    """Creates a project."""
    served.rights.require(Role.WRITER, {"repository": asked.repository})
    return served.repository(asked.repository).projects.create(
        asked.name,
        parent_id=asked.parent_id,
        description=asked.description,
        properties=asked.properties,
        expires_at=asked.expires_at,
        ensure_unique_name=asked.ensure_unique_name,
    )


@routes.add("GET", "/projects", Role.READER, anywhere=True)
def list_projects(
    repository: Annotated[Text, Query()],
    paging: PagingDep,
    listed: ListedDep,
    served: ServedDep,
    parent_id: Annotated[Text | None, Query()] = None,
    path: Annotated[Text | None, Query()] = None,
) -> PageOf[Project]:
    """Lists the projects within a parent, or those without a parent, by name; or returns the one
    project at a path."""
    served.rights.require(Role.READER, {"repository": repository})
    projects = served.repository(repository).projects
    if path is not None:
        found = projects.find(path, include_expired=listed.include_expired)
        return PageOf(paging.pagination(1, None), [found])
    return paging.cut(
        projects.page(
            parent_id=parent_id,
            listed=listed,
            prefix=paging.prefix,
            after=paging.after_item,
            amount=paging.amount_and_one,
        ),
        lambda each: item_place(each.name, each.project_id),
    )


@routes.add("PATCH", _PROJECT, Role.WRITER)
def update_project(project_id: Segment, asked: ProjectUpdate, served: ServedDep) -> Project:
    """Changes the given fields. If the project is in the trash, only `expires_at` can be changed,
    which restores the project."""
    projects = served.store.repository_of_project(project_id).projects
    return projects.update(project_id, **given_in(asked))


@routes.add("POST", "/collections", Role.WRITER, status=201, anywhere=True)
def create_collection(asked: CollectionCreation, served: ServedDep) -> Collection:
    """Creates a collection: empty, or with the files of its sources. No bytes are copied."""
    served.rights.require(Role.WRITER, {"project_id": asked.project_id})
    found = served.store.repository_of_project(asked.project_id)
    return found.collections.create(
        asked.project_id,
        asked.name,
        ContentChange(asked.sources()),
        description=asked.description,
        properties=asked.properties,
        replication_desired=asked.replication_desired,
        expires_at=asked.expires_at,
        ensure_unique_name=asked.ensure_unique_name,
    )


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
) -> PageOf[Collection]:
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
    return PageOf(paging.pagination(1, None), [found])


def _in_project(
    project_id: str, name: str | None, paging: Paging, listed: ListFilter, served: Served
) -> PageOf[Collection]:
    served.rights.require(Role.READER, {"project_id": project_id})
    found = served.store.repository_of_project(project_id)
    return paging.cut(
        found.collections.page(
            project_id,
            listed=listed,
            prefix=paging.prefix,
            name=name,
            after=paging.after_item,
            amount=paging.amount_and_one,
        ),
        lambda each: item_place(each.name, each.collection_id),
    )


@routes.add("PATCH", _COLLECTION, Role.WRITER)
def update_collection(
    collection_id: Segment, asked: CollectionUpdate, served: ServedDep
) -> Collection:
    """Changes the given fields. If the collection is in the trash, only `expires_at` can be
    changed, which restores the collection."""
    collections = served.store.repository_of_collection(collection_id).collections
    given = {name: value for name, value in given_in(asked).items() if name not in _OF_CONTENT}
    return collections.update(collection_id, asked.content(), **given)


@routes.add("GET", _COLLECTION + "/versions", Role.READER)
def list_versions(
    collection_id: Segment,
    served: ServedDep,
    paging: PagingDep,
    before: Annotated[int | None, Query(ge=0, le=VERSION_MAX)] = None,
) -> PageOf[VersionRow]:
    """Lists the earlier versions that are kept, the newest first."""
    collections = served.store.repository_of_collection(collection_id).collections
    return paging.cut(
        collections.versions(collection_id, before=before, amount=paging.amount_and_one),
        lambda each: str(each.version),
    )


@routes.add("DELETE", _COLLECTION + "/versions/{version}", Role.WRITER, status=204)
def delete_version(collection_id: Segment, version: int, served: ServedDep) -> Response:
    """Drops an earlier version. Locators of its files stay valid until they expire."""
    found = served.store.repository_of_collection(collection_id)
    found.collections.drop_version(collection_id, version)
    return Response(status_code=204)


def given_in(asked: Wire) -> dict[str, Any]:  # each value has the type of its field
    """Returns the fields that a request for a change contains, by name. Fields that it leaves out
    do not change."""
    return {name: getattr(asked, name) for name in asked.model_fields_set}
