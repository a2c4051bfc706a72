"""Queries: projects, the collections in them, and the kept versions of collections.

An item in a project ends at the earliest date of the item and the projects above it. `lineage_of`
returns these projects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.documents import HIDDEN, documented
from ebbtide.ids import is_id
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import Rows
from ebbtide.store.database.schema import (
    END_WITH_COLLECTION,
    collection_versions,
    collections,
    projects,
)
from ebbtide.store.doors import all_door_rows

DEPTH_MAX: Final = 64
"""The maximal depth of nested projects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRow:
    """One project as it is stored. `parent_id` is None for a project at the top."""

    project_id: str
    repository_id: str = field(metadata=HIDDEN)
    parent_id: str | None
    name: str
    description: str
    properties: Mapping[str, Any]
    created_at: datetime
    modified_at: datetime
    expires_at: datetime | None


PROJECTS: Final = Rows(projects, ProjectRow, projects.c.project_id)


def _lineage() -> sa.Select[Any]:
    start = (
        sa.select(*PROJECTS.columns, sa.literal(0).label("depth"))
        .where(projects.c.project_id == sa.bindparam("project_id"))
        .cte("lineage", recursive=True)
    )
    above = sa.select(*PROJECTS.columns, (start.c.depth + 1).label("depth")).where(
        projects.c.project_id == start.c.parent_id,
        # A project cannot be moved below itself. The limit is for a damaged table, which must not
        # hang a server.
        start.c.depth < 2 * DEPTH_MAX,
    )
    lineage = start.union_all(above)
    names = tuple(ProjectRow.__dataclass_fields__)
    return sa.select(*(lineage.c[name] for name in names)).order_by(lineage.c.depth)


_LINEAGE: Final = _lineage()


def lineage_of(tx: Transaction, project_id: str) -> list[ProjectRow]:
    """Returns the project and all projects above it, the innermost first. The list is empty if
    there is no such project."""
    return PROJECTS.all(tx, _LINEAGE, {"project_id": project_id})


def projects_named(
    tx: Transaction, repository_id: str, parent_id: str | None, name: str
) -> list[ProjectRow]:
    """Returns all projects of this name in one parent, also trashed and gone ones."""
    query = PROJECTS.select(
        projects.c.repository_id == repository_id, in_parent(parent_id), projects.c.name == name
    )
    return PROJECTS.all(tx, query.order_by(projects.c.project_id))


def in_parent(parent_id: str | None) -> sa.ColumnElement[bool]:
    """Returns the condition for the projects in a parent; None means in no project."""
    if parent_id is None:
        return projects.c.parent_id.is_(None)
    return projects.c.parent_id == parent_id


def project_from(tx: Transaction, repository_id: str, project_id: str) -> ProjectRow | None:
    """Returns the first project of the repository, by id, whose id is at or after `project_id`."""
    query = PROJECTS.select(
        projects.c.project_id >= project_id, projects.c.repository_id == repository_id
    )
    return PROJECTS.one(tx, query.order_by(projects.c.project_id).limit(1))


@dataclass(frozen=True, slots=True)
class ProjectLink:
    """The columns of a project that decide its path and its end."""

    parent_id: str | None
    name: str
    expires_at: datetime | None


def read_project_tree(tx: Transaction, repository_id: str) -> dict[str, ProjectLink]:
    """Returns every project of a repository, in any state, by id."""
    rows = tx.execute(
        sa.select(
            projects.c.project_id, projects.c.parent_id, projects.c.name, projects.c.expires_at
        ).where(projects.c.repository_id == repository_id)
    )
    return {row.project_id: ProjectLink(row.parent_id, row.name, row.expires_at) for row in rows}


def delete_projects(tx: Transaction, project_ids: list[str]) -> None:
    """Deletes projects. Projects below them must be deleted in the same call, or before it."""
    tx.execute(sa.delete(projects).where(projects.c.project_id.in_(project_ids)))


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRow:
    """A collection as it was before an update, with the fields that versions keep. `content_id`
    names the commit that holds its content."""

    collection_id: str
    version: int
    repository_id: str = field(metadata=HIDDEN)
    name: str
    description: str
    properties: Mapping[str, Any]
    content_id: str = field(metadata=HIDDEN)
    content_hash: str
    file_count: int
    size_bytes: int
    modified_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionRow(VersionRow):
    """One collection as it is stored: what its versions keep, and what they do not."""

    project_id: str
    replication_desired: int
    created_at: datetime
    expires_at: datetime | None


COLLECTIONS: Final = Rows(collections, CollectionRow, collections.c.collection_id)
VERSIONS: Final = Rows(collection_versions, VersionRow, collection_versions.c.collection_id)


def collections_with_id(tx: Transaction, repository_id: str, name: str) -> list[CollectionRow]:
    """Returns the collections, in any state, that an id names: at most one, except for a hash.

    Ids are the store's id, and those that clients of doors know, such as a hash of Arvados, which
    several collections can have. The rows are sorted by the store's id.
    """
    known = [each.collections_named(repository_id, name) for each in all_door_rows()]
    is_named: list[sa.ColumnElement[bool]] = [
        collections.c.collection_id.in_(ids) for ids in known if ids is not None
    ]
    if is_id(name):
        is_named.append(collections.c.collection_id == name)
    if not is_named:
        return []
    query = COLLECTIONS.select(collections.c.repository_id == repository_id, sa.or_(*is_named))
    return COLLECTIONS.all(tx, query.order_by(collections.c.collection_id))


def clients_ids(tx: Transaction, collection_ids: Iterable[str]) -> dict[str, str]:
    """Returns the ids that clients of doors know, by the store's ids. Collections that these
    clients did not make have none."""
    found: dict[str, str] = {}
    for each in all_door_rows():
        found |= each.clients_ids(tx, collection_ids)
    return found


def collections_named(tx: Transaction, project_id: str, name: str) -> list[CollectionRow]:
    """Returns all collections of this name in a project, also trashed and gone ones."""
    query = COLLECTIONS.select(collections.c.project_id == project_id, collections.c.name == name)
    return COLLECTIONS.all(tx, query.order_by(collections.c.collection_id))


LATEST_FIRST: Final = (
    collections.c.expires_at.is_not(None),
    collections.c.expires_at.desc(),
    collections.c.collection_id,
)
"""The order of collections: first the persistent ones, then by `expires_at`, the latest first."""


def list_versions(
    tx: Transaction, collection_id: str, *, before: int | None = None, amount: int | None = None
) -> list[VersionRow]:
    """Returns the kept versions of a collection, the newest first: at most `amount`, from the
    versions before `before`."""
    query = VERSIONS.select(collection_versions.c.collection_id == collection_id)
    if before is not None:
        query = query.where(collection_versions.c.version < before)
    return VERSIONS.all(tx, query.order_by(collection_versions.c.version.desc()).limit(amount))


def find_version(tx: Transaction, collection_id: str, version: int) -> VersionRow | None:
    """Returns one version of a collection, or None if it is not kept."""
    return VERSIONS.by_id(tx, collection_id, collection_versions.c.version == version)


def delete_version(tx: Transaction, collection_id: str, version: int) -> bool:
    """Deletes a kept version. Returns whether there was one."""
    dropped = tx.execute(
        sa.delete(collection_versions)
        .where(
            collection_versions.c.collection_id == collection_id,
            collection_versions.c.version == version,
        )
        .returning(collection_versions.c.version)
    )
    return bool(dropped.all())


@dataclass(frozen=True, slots=True)
class ContentUse:
    """A content that a collection has now, or has in a kept version."""

    collection_id: str
    project_id: str
    name: str
    version: int | None
    content_id: str
    expires_at: datetime | None
    replication_desired: int


def read_content_uses(tx: Transaction, repository_id: str) -> Iterator[ContentUse]:
    """Yields every content of the repository's collections, in any state. `version` is None for a
    collection's present content. A kept version ends with its collection, and keeps its data as its
    collection does."""
    mine = collections.c.repository_id == repository_id
    own = sa.select(
        collections.c.collection_id,
        collections.c.project_id,
        collections.c.name,
        sa.null().label("version"),
        collections.c.content_id,
        collections.c.expires_at,
        collections.c.replication_desired,
    ).where(mine)
    kept = (
        sa.select(
            collections.c.collection_id,
            collections.c.project_id,
            collections.c.name,
            collection_versions.c.version,
            collection_versions.c.content_id,
            collections.c.expires_at,
            collections.c.replication_desired,
        )
        .join_from(collection_versions, collections)
        .where(mine)
    )
    for query in (own, kept):
        for row in tx.execute(query):
            yield ContentUse(**row._mapping)


def is_collection_on(tx: Transaction, repository_id: str, content_id: str) -> bool:
    """Whether a collection, or a kept version of one, has this content."""
    for table in (collections, collection_versions):
        query = sa.select(table.c.collection_id).where(
            table.c.repository_id == repository_id, table.c.content_id == content_id
        )
        if tx.execute(query.limit(1)).first() is not None:
            return True
    return False


def delete_collections(tx: Transaction, collection_ids: list[str]) -> None:
    """Deletes collections, their versions, and what doors know of them."""
    for table in (*END_WITH_COLLECTION, collections):
        tx.execute(sa.delete(table).where(table.c.collection_id.in_(collection_ids)))
