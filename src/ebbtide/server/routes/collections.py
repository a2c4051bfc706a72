"""Collections: create, find, change, delete and restore. lakeFS has no such routes.

Not for: their files (`collected_files`).
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Body, Query, Response

from ebbtide.errors import InvalidInput
from ebbtide.server.lifecycle import ExpiredQuery, ListedDep
from ebbtide.server.paging import Paging, PagingDep, item_place
from ebbtide.server.routes.projects import given_in
from ebbtide.server.routing import Routes
from ebbtide.server.serving import Served, ServedDep
from ebbtide.server.wire.base import Restoration, Segment, Text
from ebbtide.server.wire.collections import (
    CollectionAnswer,
    CollectionCreation,
    CollectionList,
    CollectionUpdate,
    ContentSources,
    VersionAnswer,
    VersionList,
)
from ebbtide.store.access.keys import Role
from ebbtide.store.collections.contents import ContentChange
from ebbtide.store.repositories.lifecycle import ListFilter

routes = Routes("collections")

VERSION_MAX: Final = 2**53
_COLLECTION: Final = "/collections/{collection_id:segment}"
_OF_CONTENT: Final = {*ContentSources.model_fields, "removed", "replaces"}


@routes.add("POST", "/collections", Role.WRITER, status=201)
def create_collection(asked: CollectionCreation, served: ServedDep) -> CollectionAnswer:
    """Creates a collection: empty, or with the files of its sources. No bytes are copied."""
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


@routes.add("GET", "/collections", Role.READER)
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

    For a content hash, persistent collections come before expiring ones, and both before those in
    the trash.
    """
    if project_id is not None and repository is path is content_hash is None:
        return _in_project(project_id, name, paging, listed, served)
    if project_id is not None or repository is None or (path is None) == (content_hash is None):
        raise InvalidInput(
            "invalid_argument",
            "give either project_id, or repository with one of path and content_hash",
        )
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
    found = served.store.repository_of_project(project_id)
    page, more = paging.cut(
        found.collections.page(
            project_id,
            include_expired=listed.include_expired,
            state=listed.state,
            from_date=listed.expires_after,
            to_date=listed.expires_before,
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
    """Changes the given fields. In the trash only `expires_at` can be changed, which restores the
    collection."""
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
